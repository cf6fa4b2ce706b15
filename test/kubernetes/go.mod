// Go requires this file. VERSION.mod contains the requirements for one version of Kubernetes.
module github.com/prebind/prebind/test/kubernetes

go 1.26.0

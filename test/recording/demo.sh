# Copyright The Prebind Authors.
# SPDX-License-Identifier: Apache-2.0
#
# The session of docs/images/demo.svg. `make demo-recording` runs it in a new cluster.

# Two pods ask for the same GPU of node-7. Their schedulers do not see each other's binds.
kubectl create -f train-0.yaml
 kubectl wait pod train-0 --for=condition=Ready
kubectl create -f train-1.yaml
 until kubectl get events | grep -q 'train-1.*BindRefused\|BindRefused.*train-1'; do sleep 0.2; done
kubectl get pods -o wide

# Why is train-1 not bound?
kubectl prebind explain train-1

# When the GPU is free, train-1 gets it, and learns where it runs.
kubectl delete pod train-0 --force 2>/dev/null
kubectl wait pod train-1 --for=condition=Ready
kubectl prebind explain train-1

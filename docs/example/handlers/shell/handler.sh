#!/bin/sh
# Copyright The Prebind Authors.
# SPDX-License-Identifier: Apache-2.0

# A handler in shell, which needs only kubectl. Replace do_step and undo_step. They must be idempotent. Here they create and delete a ConfigMap.
set -u
handler=example.com/shell

do_step() { kubectl create configmap "$1" --dry-run=client -o yaml | kubectl apply -f -; }
undo_step() { kubectl delete configmap "$1" --ignore-not-found; }

# A write fails if the BindTask has another resource version now, such as one that was created again. Then there is another line for it.
set_finalizers() { # NAME VERSION FINALIZERS
	kubectl patch bindtask "$1" --type=merge -p "{\"metadata\": {\"resourceVersion\": \"$2\", \"finalizers\": [$3]}}"
}
report_ready() { # NAME VERSION
	condition='{"type": "Ready", "status": "True"}'
	kubectl patch bindtask "$1" --subresource=status --type=merge \
		-p "{\"metadata\": {\"resourceVersion\": \"$2\"}, \"status\": {\"conditions\": [$condition]}}"
}

# Each line is a BindTask: first all that exist, then each that changes. A field that can be empty begins with "-". The watch ends after 30 s, and the
# next list repeats the steps that failed.
line='{.metadata.name} {.metadata.resourceVersion} -{.metadata.deletionTimestamp} -{.metadata.finalizers} -{.status.conditions[?(@.status=="True")].type}{"\n"}'
while true; do
	kubectl get bindtasks --field-selector="spec.handler=$handler" --watch --request-timeout=30s -o jsonpath="$line" |
		while read -r name version deleted finalizers result; do
			case "$deleted $finalizers $result" in
			"- - -") set_finalizers "$name" "$version" "\"$handler\"" ;; # The next line is the result.
			"- "*"$handler"*" -") do_step "$name" && report_ready "$name" "$version" ;;
			"- "*) ;; # It is ready.
			*"$handler"*) undo_step "$name" && set_finalizers "$name" "$version" "" ;;
			esac
		done
	sleep 1
done

#!/bin/sh
# Copyright The Prebind Authors.
# SPDX-License-Identifier: Apache-2.0

# A handler in shell, which needs only kubectl. Replace do_step and undo_step. They must be idempotent. Here they create and delete a ConfigMap
# with the name of the BindTask. do_step returns 0 if the step is done, 2 if it cannot be done on this node, and otherwise it is called again.
set -u
handler=example.com/shell

field() { kubectl get bindtask "$1" -o jsonpath="{.spec.$2}"; } # NAME FIELD, such as nodeName, pod.uid or parameters.image

do_step() {
	node=$(field "$1" nodeName) || return 1
	level=$(field "$1" parameters.level) || return 1
	if [ "$level" = none ]; then return 2; fi
	kubectl create configmap "$1" --from-literal="node=$node" --dry-run=client -o yaml | kubectl apply -f -
}
undo_step() { kubectl delete configmap "$1" --ignore-not-found; }

# A write fails if the BindTask has another resource version now, such as one that was created again. Then there is another line for it.
set_finalizers() { # NAME VERSION FINALIZERS
	kubectl patch bindtask "$1" --type=merge -p "{\"metadata\": {\"resourceVersion\": \"$2\", \"finalizers\": [$3]}}"
}
report() { # NAME VERSION RESULT
	case $3 in
	0) condition='{"type": "Ready", "status": "True"}' ;;
	2) condition='{"type": "Failed", "status": "True", "reason": "Impossible", "message": "the step cannot be done on this node"}' ;;
	*) return ;;
	esac
	kubectl patch bindtask "$1" --subresource=status --type=merge \
		-p "{\"metadata\": {\"resourceVersion\": \"$2\"}, \"status\": {\"conditions\": [$condition]}}"
}

# Each line is a BindTask: first all that exist, then each that changes. A field that can be empty begins with "-". The watch ends after 30 s, and the
# next list repeats the steps that failed.
line='{.metadata.name} {.metadata.resourceVersion} -{.metadata.deletionTimestamp} -{.metadata.finalizers} -{.status.conditions[?(@.type=="Ready")].status}{.status.conditions[?(@.type=="Failed")].status}{"\n"}'
while true; do
	kubectl get bindtasks --field-selector="spec.handler=$handler" --watch --request-timeout=30s -o jsonpath="$line" |
		while read -r name version deleted finalizers result; do
			case "$deleted $result" in "- "*True*) continue ;; esac # It is ready, or has failed.
			case "$deleted $finalizers" in
			"- -") set_finalizers "$name" "$version" "\"$handler\"" ;; # The next line is the result.
			"- "*"$handler"*) do_step "$name" </dev/null; report "$name" "$version" $? ;;
			*"$handler"*) undo_step "$name" </dev/null && set_finalizers "$name" "$version" "" ;;
			esac
		done
	sleep 1
done

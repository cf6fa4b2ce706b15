# Copyright The Prebind Authors.
# SPDX-License-Identifier: Apache-2.0

# A handler in Python, which needs only kubectl. Replace the two calls of print: begin the step or its undo, and return until it is done.
import json, subprocess, time

NAME = "example.com/hello"

def patch(task, metadata, *args, **fields):  # Fails if the BindTask has changed: then another event follows.
    body = {"metadata": {"resourceVersion": task["metadata"]["resourceVersion"], **metadata}, **fields}
    subprocess.run(["kubectl", "patch", "bindtask", task["metadata"]["name"], "--type=merge", "-p", json.dumps(body), *args], check=True)

def reconcile(task):
    meta = task["metadata"]
    finalizers = meta.get("finalizers", [])
    if "deletionTimestamp" in meta:
        if NAME in finalizers:
            print("undo", meta["name"])                  # Begin to undo the step, and return until it is undone.
            patch(task, {"finalizers": [f for f in finalizers if f != NAME]})
    elif any(c["status"] == "True" for c in task.get("status", {}).get("conditions", [])):
        return                                           # Ready or Failed.
    elif NAME not in finalizers:
        patch(task, {"finalizers": finalizers + [NAME]})  # The next event continues.
    else:
        print("do", meta["name"], task["spec"]["nodeName"])  # Begin the step, and return until it is done.
        patch(task, {}, "--subresource=status",
              status={"conditions": [{"type": "Ready", "status": "True"}], "annotations": {"greeting": "hello"}})

while True:  # The watch ends after 30 s. Then each BindTask is handled again.
    watch = subprocess.Popen(["kubectl", "get", "bindtasks", "--watch", "--request-timeout=30s", "-o", "json",
                              "--field-selector", "spec.handler=" + NAME], stdout=subprocess.PIPE, text=True)
    text = ""
    for line in watch.stdout:
        text += line
        if line == "}\n":
            task, text = json.loads(text), ""
            try:
                reconcile(task)
            except Exception as e:
                print(e)
    watch.wait()
    time.sleep(1)

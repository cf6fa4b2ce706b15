# Copyright The Prebind Authors.
# SPDX-License-Identifier: Apache-2.0

"""A handler in Python, which needs only the standard library.

Replace do_step and undo_step. They must be idempotent, and must not wait. Here they create and delete a ConfigMap with the name of the BindTask.
"""

import json
import logging
import os
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request

HANDLER = "example.com/python"
TASKS = "/apis/policy.prebind.dev/v1alpha1/bindtasks"
CONFIGMAPS = "/api/v1/namespaces/bind-handlers/configmaps"

SERVER = os.environ.get("API_SERVER", "https://kubernetes.default.svc")
ACCOUNT = os.environ.get("SERVICE_ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount")
ALREADY_EXISTS = CONFLICT = 409
NOT_FOUND = 404


def do_step(task):
    """Begins the step, or looks at it. Returns the condition, and the annotations of the pod."""
    spec = task["spec"]
    if spec.get("parameters", {}).get("level") == "none":
        return {"type": "Failed", "status": "True", "reason": "Impossible", "message": "the step cannot be done on this node"}, {}
    config = {"metadata": {"name": task["metadata"]["name"]}, "data": {"node": spec["nodeName"]}}
    request("POST", CONFIGMAPS, config, ignore=ALREADY_EXISTS)
    # While the step is not done: return {"type": "Ready", "status": "False", "message": "a constant text"}, {}
    return {"type": "Ready", "status": "True"}, {"configmap": task["metadata"]["name"]}


def undo_step(task):
    """Undoes the step. After an exception, it is called again."""
    request("DELETE", CONFIGMAPS + "/" + task["metadata"]["name"], ignore=NOT_FOUND)


def request(method, path, body=None, ignore=None):
    """Sends a request to the API server. The kubelet renews the token."""
    with open(ACCOUNT + "/token", encoding="utf-8") as token:
        headers = {"Authorization": "Bearer " + token.read().strip()}
    headers["Content-Type"] = "application/merge-patch+json" if method == "PATCH" else "application/json"
    data = None if body is None else json.dumps(body).encode()
    trust = ssl.create_default_context(cafile=ACCOUNT + "/ca.crt")
    try:
        with urllib.request.urlopen(urllib.request.Request(SERVER + path, data, headers, method=method), timeout=10, context=trust) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code == ignore:
            return None
        raise


class Outdated(Exception):
    """The BindTask has changed since it was read, or is gone."""


def patch(task, part, change):
    """Changes the BindTask, if it has not changed since it was read, and returns it."""
    change.setdefault("metadata", {})["resourceVersion"] = task["metadata"]["resourceVersion"]
    try:
        return request("PATCH", TASKS + "/" + task["metadata"]["name"] + part, change)
    except urllib.error.HTTPError as error:
        if error.code in (NOT_FOUND, CONFLICT):
            raise Outdated from error
        raise


def handle(task):
    """Does or undoes the step of the BindTask. It keeps finalizers and conditions of others."""
    finalizers = task["metadata"].get("finalizers", [])
    conditions = {c["type"]: c for c in task.get("status", {}).get("conditions", [])}
    if "deletionTimestamp" in task["metadata"]:
        if HANDLER in finalizers:
            undo_step(task)
            patch(task, "", {"metadata": {"finalizers": [f for f in finalizers if f != HANDLER]}})
        return
    if any(conditions.get(t, {}).get("status") == "True" for t in ("Ready", "Failed")):
        return
    if HANDLER not in finalizers:
        task = patch(task, "", {"metadata": {"finalizers": finalizers + [HANDLER]}})
    try:
        condition, annotations = do_step(task)
    except Exception:
        logging.exception("BindTask %s", task["metadata"]["name"])
        condition, annotations = {"type": "Ready", "status": "False", "message": "an error: see the log of " + HANDLER}, {}
    if conditions.get(condition["type"]) != condition:
        conditions[condition["type"]] = condition
        patch(task, "/status", {"status": {"conditions": list(conditions.values()), "annotations": annotations}})


def read_tasks():
    """Returns the BindTasks of the handler, which it reads in pages: each pod that runs can have one."""
    query = {"fieldSelector": "spec.handler=" + HANDLER, "limit": 500}
    while True:
        page = request("GET", TASKS + "?" + urllib.parse.urlencode(query))
        yield from page["items"]
        query["continue"] = page["metadata"].get("continue")
        if not query["continue"]:
            return


def main():
    """Lists the BindTasks every second: a list repeats what failed. For thousands of them, use a watch instead."""
    while True:
        try:
            for task in read_tasks():
                try:
                    handle(task)
                except Outdated:
                    pass  # The next list has its new state.
                except Exception:  # One BindTask must not stop the others.
                    logging.exception("BindTask %s", task["metadata"]["name"])
        except Exception:  # Such as an answer that ends early.
            logging.exception("reading the BindTasks")
        time.sleep(1)


if __name__ == "__main__":
    main()

// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Runs the program of the playground beside the page, so that the page can end it. Receives the compiled program, answers {ready: true}, and then
// answers each {policy, test} with {report}.
"use strict";

importScripts("wasm_exec.js");

onmessage = async ({data: module}) => {
  const go = new Go();
  const ended = go.run(await WebAssembly.instantiate(module, go.importObject));
  onmessage = ({data: {policy, test}}) => {
    postMessage({report: JSON.parse(prebindCheck(policy, test))});
  };
  postMessage({ready: true});
  await ended;
  throw new Error("the program ended");
};

// An error in a promise also counts as an error of the worker.
addEventListener("unhandledrejection", ({reason}) => setTimeout(() => { throw reason; }));

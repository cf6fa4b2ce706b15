// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Time for a check. The cost limits of CEL end every expression before, so a policy cannot reach it unless the program has a mistake.
const timeLimit = 10_000;

// compile loads the program, and compiles it during the download. The file is compressed, because it is large and not all servers compress it.
// progress is called with the loaded part, from 0 to 1.
async function compile(progress) {
  const response = await fetch("playground.wasm.gz");
  if (!response.ok) {
    throw new Error(`playground.wasm.gz: ${response.status} ${response.statusText}`);
  }
  const size = Number(response.headers.get("Content-Length"));
  let loaded = 0;
  let program = response.body.pipeThrough(new TransformStream({
    transform(chunk, controller) {
      loaded += chunk.length;
      progress(loaded / size);
      controller.enqueue(chunk);
    },
  }));
  if (!response.headers.has("Content-Encoding")) { // Otherwise, the browser has decompressed it.
    program = program.pipeThrough(new DecompressionStream("gzip"));
  }
  return WebAssembly.compileStreaming(new Response(program, {headers: {"Content-Type": "application/wasm"}}));
}

// Engine checks policies in a worker.
export class Engine {
  #known;
  #progress;
  #module;
  #worker;

  // known is a policy and its test whose check ends. The first check of a worker needs seconds, and its time does not count.
  // progress is called during the download of the program, with the loaded part from 0 to 1.
  constructor(known, progress) {
    this.#known = known;
    this.#progress = progress;
  }

  // check returns the report for a policy and its test. It must not be called again before the last call has ended.
  async check(policy, test) {
    this.#module ??= await compile(this.#progress);
    this.#worker ??= await this.#start();
    const {report} = await this.#ask({policy, test}, timeLimit);
    return report;
  }

  // start returns a worker with the program.
  async #start() {
    this.#worker = new Worker("worker.js");
    await this.#ask(this.#module);
    await this.#ask({policy: this.#known.policy, test: this.#known.test});
    return this.#worker;
  }

  // ask sends a message to the worker and returns its answer. Without an answer, the worker ends, and the next check starts another.
  #ask(message, limit) {
    const worker = this.#worker;
    let timer;
    return new Promise((resolve, reject) => {
      worker.onmessage = ({data}) => resolve(data);
      worker.onerror = (event) => {
        event.preventDefault();
        reject(new Error(event.message || "the worker did not start"));
      };
      if (limit) {
        timer = setTimeout(() => reject(new Error(`no result after ${limit / 1000} seconds; make the policy or the objects smaller`)), limit);
      }
      worker.postMessage(message);
    }).catch((error) => {
      worker.terminate();
      this.#worker = undefined;
      throw error;
    }).finally(() => clearTimeout(timer));
  }
}

// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Links contain the policy and the test after the #, which browsers do not send to servers: as compressed JSON in base64url. A link can
// come from anybody, so its size is limited before and after decompression.
const prefix = "#code=";
const maxLink = 64 << 10;
const maxText = 256 << 10;

async function convert(bytes, through, limit) {
  const reader = new Blob([bytes]).stream().pipeThrough(through).getReader();
  const parts = [];
  let size = 0;
  for (;;) {
    const {done, value} = await reader.read();
    if (done) {
      return new Blob(parts).arrayBuffer();
    }
    size += value.length;
    if (size > limit) {
      await reader.cancel();
      throw new Error("the text is too long for a link");
    }
    parts.push(value);
  }
}

// encode returns the fragment of a URL.
export async function encode(policy, test) {
  const text = new TextEncoder().encode(JSON.stringify([policy, test]));
  if (text.length > maxText) {
    throw new Error("the text is too long for a link");
  }
  const packed = new Uint8Array(await convert(text, new CompressionStream("deflate-raw"), maxLink / 2));
  const binary = Array.from(packed, (byte) => String.fromCharCode(byte)).join("");
  return prefix + btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

// decode returns the policy and the test of a fragment, or undefined if it has none.
export async function decode(fragment) {
  if (!fragment.startsWith(prefix)) {
    return undefined;
  }
  if (fragment.length > maxLink) {
    throw new Error("it is too long");
  }
  const binary = atob(fragment.slice(prefix.length).replaceAll("-", "+").replaceAll("_", "/"));
  const text = await convert(Uint8Array.from(binary, (c) => c.charCodeAt(0)), new DecompressionStream("deflate-raw"), maxText);
  const [policy, test] = JSON.parse(new TextDecoder().decode(text));
  if (typeof policy !== "string" || typeof test !== "string") {
    throw new Error("it contains no policy and test");
  }
  return {policy, test};
}

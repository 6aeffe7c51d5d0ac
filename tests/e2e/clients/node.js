// SPDX-License-Identifier: MIT OR Apache-2.0
// Files, timers, TCP and HTTP on loopback, all verified by checksum; run with UV_USE_IO_URING=1.
//
// usage: node node.js DIRECTORY
'use strict';

const assert = require('node:assert/strict');
const { createHash, randomBytes } = require('node:crypto');
const { once } = require('node:events');
const fs = require('node:fs/promises');
const http = require('node:http');
const net = require('node:net');
const path = require('node:path');

const FILES = 16;
const FILE_BYTES = 256 * 1024;
const TIMERS = 500;
const REQUESTS = 100;
const REQUEST_BYTES = 32 * 1024;
const TCP_BYTES = 4 * 1024 * 1024;

const digest = (bytes) => createHash('sha256').update(bytes).digest('hex');

async function oneFile(directory, index) {
  const data = randomBytes(FILE_BYTES);
  const name = path.join(directory, `node-${index}`);
  const file = await fs.open(name, 'w+');
  const half = FILE_BYTES / 2;
  await Promise.all([file.write(data, half, half, half), file.write(data, 0, half, 0)]);
  await file.sync();
  assert.equal((await file.stat()).size, FILE_BYTES);
  await file.close();
  await fs.rename(name, `${name}.moved`);
  assert.equal(digest(await fs.readFile(`${name}.moved`)), digest(data));
  await fs.unlink(`${name}.moved`);
  await assert.rejects(fs.lstat(name), { code: 'ENOENT' });
}

async function timers() {
  const wait = (ms) =>
    new Promise((resolve) => {
      const start = process.hrtime.bigint();
      setTimeout(() => resolve(Number(process.hrtime.bigint() - start) / 1e6), ms);
    });
  const delays = Array.from({ length: TIMERS }, (_, index) => 1 + (index % 50));
  const waited = await Promise.all(delays.map(wait));
  // libuv's clock counts whole milliseconds, so that a timer may look up to one early.
  delays.forEach((ms, index) => assert.ok(waited[index] > ms - 1.5, `${ms} ms lasted ${waited[index]} ms`));
}

async function tcpEcho() {
  const server = net.createServer((socket) => socket.pipe(socket)).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const data = randomBytes(TCP_BYTES);
  const socket = net.connect(server.address().port, '127.0.0.1');
  socket.end(data);
  const received = [];
  for await (const chunk of socket) received.push(chunk);
  assert.equal(digest(Buffer.concat(received)), digest(data));
  server.close();
}

function post(port, body) {
  return new Promise((resolve, reject) => {
    const options = { port, host: '127.0.0.1', method: 'POST', agent: false };
    const request = http.request(options, async (response) => {
      const received = [];
      for await (const chunk of response) received.push(chunk);
      resolve(Buffer.concat(received).toString());
    });
    request.on('error', reject).end(body);
  });
}

async function httpRequests() {
  const server = http.createServer(async (request, response) => {
    const received = [];
    for await (const chunk of request) received.push(chunk);
    response.end(digest(Buffer.concat(received)));
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const one = async () => {
    const body = randomBytes(REQUEST_BYTES);
    assert.equal(await post(server.address().port, body), digest(body));
  };
  await Promise.all(Array.from({ length: REQUESTS }, one));
  server.close();
}

async function main(directory) {
  assert.ok(directory, 'usage: node node.js DIRECTORY');
  await Promise.all(Array.from({ length: FILES }, (_, index) => oneFile(directory, index)));
  await Promise.all([timers(), tcpEcho(), httpRequests()]);
  console.log(`node: ${FILES} files, ${TIMERS} timers, ${TCP_BYTES} bytes over TCP, ${REQUESTS} HTTP requests, verified`);
}

// A promise that nothing will ever settle ends Node with status 13, so that a lost completion is seen.
main(process.argv[2]).catch((error) => {
  console.error(error);
  process.exitCode = 1;
});

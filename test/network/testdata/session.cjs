// What a program does with one HTTP/2 connection to the server.
//
//	node session.cjs SCENARIO URL CA-FILE TOKEN
//
// It prints ok, or fails with what was wrong.
'use strict';
const assert = require('assert');
const fs = require('fs');
const http2 = require('http2');
const [scenario, url, caFile, token] = process.argv.slice(2);
const configmaps = '/api/v1/namespaces/default/configmaps';

// request sends one, and returns its answer when it is whole.
function request(session, method, path, body) {
  return new Promise((resolve, reject) => {
    const req = session.request({':method': method, ':path': path, authorization: 'Bearer ' + token, 'content-type': 'application/json'});
    const answer = {status: 0, body: ''};
    req.setEncoding('utf8');
    req.on('response', (headers) => { answer.status = headers[':status']; });
    req.on('data', (text) => { answer.body += text; });
    req.on('error', reject);
    req.on('close', () => resolve(answer));
    req.end(body);
  });
}

function create(session, name, size) {
  return request(session, 'POST', configmaps, JSON.stringify({metadata: {name}, data: {text: 'x'.repeat(size)}}));
}

// watch begins a watch, and calls back for each event.
function watch(session, path, onEvent) {
  const stream = session.request({':path': path, authorization: 'Bearer ' + token});
  let rest = '';
  stream.setEncoding('utf8');
  stream.on('data', (text) => {
    const lines = (rest + text).split('\n');
    rest = lines.pop();
    lines.forEach((line) => onEvent(JSON.parse(line)));
  });
  return stream;
}

const event = (emitter, name) => new Promise((resolve) => emitter.once(name, (...args) => resolve(args)));

const scenarios = {
  // More requests than the server takes at a time: Node keeps the others back.
  async concurrentGets(session) {
    const {body} = await request(session, 'GET', '/api/v1/namespaces/default');
    const answers = await Promise.all(Array.from({length: 500}, () => request(session, 'GET', '/api/v1/namespaces/default')));
    answers.forEach((answer) => assert.deepStrictEqual(answer, {status: 200, body}));
  },

  // A watch whose reader pauses keeps nobody else from working, and loses nothing.
  async pausedWatch(session) {
    const n = 300;
    const names = new Set();
    let all;
    const complete = new Promise((resolve) => { all = resolve; });
    const stream = watch(session, configmaps + '?watch=true', (e) => {
      if (e.type === 'ADDED' && e.object.metadata.name.startsWith('paused-')) names.add(e.object.metadata.name);
      if (names.size === n) all();
    });
    const [headers] = await event(stream, 'response');
    assert.strictEqual(headers[':status'], 200);
    stream.pause();
    for (let i = 0; i < n; i++) {
      assert.strictEqual((await create(session, 'paused-' + i, 4096)).status, 201);
    }
    assert(names.size < n, 'the reader was not paused: it has seen everything');
    stream.resume();
    await complete;
    stream.close(http2.constants.NGHTTP2_CANCEL);
    await event(stream, 'close');
  },

  // Uploads that are given up leave the connection as it was.
  async abortedUploads(session) {
    await request(session, 'GET', '/version'); // the server knows the user now
    for (let i = 0; i < 100; i++) {
      const req = session.request({':method': 'POST', ':path': configmaps, authorization: 'Bearer ' + token, 'content-type': 'application/json', 'content-length': 2 << 20});
      req.on('error', () => {});
      await new Promise((resolve) => req.write('{' + ' '.repeat(64 << 10), resolve));
      req.close(http2.constants.NGHTTP2_CANCEL);
      await event(req, 'close');
    }
    assert.strictEqual((await create(session, 'after-aborts', 1000)).status, 201);
    assert.strictEqual((await create(session, 'after-aborts-large', 900 << 10)).status, 201);
  },

  // A PING is answered while requests are.
  async pings(session) {
    await event(session, 'connect'); // Node cancels a PING that it cannot send yet
    const ping = (i) => new Promise((resolve, reject) => {
      const sent = Buffer.alloc(8, i);
      session.ping(sent, (err, duration, got) => err ? reject(err) : resolve(assert.deepStrictEqual(got, sent)));
    });
    for (let i = 0; i < 20; i++) {
      await Promise.all([ping(i), request(session, 'GET', '/version'), request(session, 'GET', '/openapi/v2')]);
    }
  },

  // Settings that change while there are requests hold for what comes after.
  async changedSettings(session) {
    for (let i = 0; i < 5; i++) await create(session, 'settings-' + i, 50 << 10);
    const list = () => request(session, 'GET', configmaps + '?resourceVersion=0&fieldSelector=metadata.name!=none');
    const {body} = await list();
    for (const settings of [{initialWindowSize: 1000}, {headerTableSize: 0}, {initialWindowSize: 1 << 20}, {headerTableSize: 8192}, {maxFrameSize: 1 << 20},
      {initialWindowSize: 0}, {initialWindowSize: 65535}, {maxHeaderListSize: 1 << 16}, {maxFrameSize: 16384}]) {
      const before = list(); // on its way
      const acknowledged = new Promise((resolve, reject) => session.settings(settings, (err) => err ? reject(err) : resolve()));
      await acknowledged;
      if (settings.initialWindowSize === 0) {
        await new Promise((resolve, reject) => session.settings({initialWindowSize: 65535}, (err) => err ? reject(err) : resolve()));
      }
      for (const answer of [await before, await list()]) {
        assert.strictEqual(answer.status, 200);
        assert(answer.body === body, `a list of ${answer.body.length} bytes, want ${body.length}, after ${JSON.stringify(settings)}`);
      }
    }
  },

  // The server goes away in good order.
  async shutdown(session) {
    session.on('goaway', (code) => console.log('goaway ' + code));
    const stream = watch(session, configmaps + '?watch=true', () => {});
    const ended = event(stream, 'end');
    await event(stream, 'response');
    console.log('watching');
    const held = request(session, 'GET', '/api/v1/namespaces/default');
    const closed = event(session, 'close');
    console.log('answer ' + (await held).status);
    await ended;
    console.log('watch ended');
    await closed;
    console.log('closed');
    process.exit(0);
  },
};

const session = http2.connect(url, {ca: fs.readFileSync(caFile)});
session.on('error', (err) => { throw err; });
if (scenario !== 'shutdown') {
  session.on('goaway', (code, last) => { console.error(`GOAWAY with code ${code}, last stream ${last}`); });
}
setTimeout(() => { throw new Error('it takes too long'); }, 50000).unref();
scenarios[scenario](session).then(() => {
  console.log('ok');
  session.close();
});

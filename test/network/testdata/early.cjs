// Sends requests with bodies as a list of jobs on standard input says, four at a
// time, and prints what came back, in the same order.
//
//	node early.cjs http2|https URL CA-FILE
'use strict';
const fs = require('fs');
const [kind, url, caFile] = process.argv.slice(2);
const ca = fs.readFileSync(caFile);
const jobs = JSON.parse(fs.readFileSync(0));
const agent = kind === 'https' ? new (require('https').Agent)({ca, keepAlive: true}) : null;
let session = null;

// connection returns the HTTP/2 connection, and a new one if the server has ended
// the last. Who is not known gets one of its own: it ends with the answer.
function connection(own) {
  if (own || session === null || session.closed || session.destroyed) {
    const next = require('http2').connect(url, {ca});
    const forget = () => { if (session === next) session = null; };
    next.on('goaway', forget);
    next.on('close', forget);
    next.on('error', forget);
    if (own) return next;
    session = next;
  }
  return session;
}

function begin(job, size) {
  const headers = {'content-type': job.ContentType, authorization: 'Bearer ' + job.Token};
  if (!job.Chunked) headers['content-length'] = size;
  if (job.Expect) headers.expect = '100-continue';
  if (kind === 'http2') {
    return connection(job.Token === 'wrong').request({':method': 'POST', ':path': job.Path, ...headers}, {endStream: false});
  }
  return require('https').request(url + job.Path, {method: 'POST', agent, headers});
}

function send(job) {
  return new Promise((resolve) => {
    const upload = () => fs.createReadStream(job.BodyFile).pipe(req);
    const answer = {Status: 0, Body: '', Error: ''};
    let done = false;
    const finish = (error) => {
      if (done) return;
      done = true;
      answer.Error = error ? String(error.code || '') + ' ' + error.message : '';
      resolve(answer);
    };
    setTimeout(() => finish(new Error('no answer for a long time')), 15000).unref();
    const req = begin(job, fs.statSync(job.BodyFile).size);
    const read = (stream) => {
      stream.setEncoding('utf8');
      stream.on('data', (text) => { answer.Body += text; });
      stream.on('end', () => finish());
      stream.on('error', finish);
    };
    req.on('error', finish);
    req.on('close', () => finish(new Error('closed without an answer')));
    req.on('response', (head) => {
      if (kind === 'http2') {
        answer.Status = head[':status'];
        read(req);
      } else {
        answer.Status = head.statusCode;
        read(head);
      }
    });
    if (job.Expect) {
      req.on('continue', upload);
      if (kind === 'https') req.flushHeaders();
    } else {
      upload();
    }
  });
}

async function main() {
  const answers = new Array(jobs.length);
  let next = 0;
  const worker = async () => {
    while (next < jobs.length) {
      const i = next++;
      answers[i] = await send(jobs[i]);
    }
  };
  await Promise.all([worker(), worker(), worker(), worker()]);
  process.stdout.write(JSON.stringify(answers), () => process.exit(0));
}
main();

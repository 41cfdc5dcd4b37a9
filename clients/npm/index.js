// A Kubernetes API server for tests. It is built on 'kelson run', which stops the server
// when the command that it runs ends; that command is a small node that prints KUBECONFIG
// and waits until its standard input is closed. So a test that crashes leaves nothing behind.
'use strict';

const { spawn } = require('node:child_process');

// The server can be told to bring back a state, and to misbehave.
class Control {
  constructor(url, token) {
    this.url = url;
    this.token = token;
  }

  async ask(method, path, body) {
    const answer = await fetch(this.url + path, { method, headers: { Authorization: 'Bearer ' + this.token }, body: body && JSON.stringify(body) });
    const said = await answer.json();
    if (!answer.ok) throw new Error(said.error);
    return said;
  }

  async save(name = 'default') { await this.ask('POST', '/snapshots', { name }); }
  async restore(name = 'default') { await this.ask('POST', '/restore', { name }); }
  async apply(...paths) { await this.ask('POST', '/apply', { paths }); }
  async user(name, groups = []) { return (await this.ask('POST', '/users', { name, groups })).kubeconfig; }
  async fault(fault) { return (await this.ask('POST', '/faults', fault)).fault; }
  async hits() { return (await this.ask('GET', '/faults')).hits; }
  async clearFaults() { await this.ask('DELETE', '/faults'); }
  async endWatches(rule = {}) { return (await this.ask('POST', '/end-watches', rule)).ended; }
  async compact() { await this.ask('POST', '/compact', {}); }
  async clock(change = {}) { return new Date((await this.ask('POST', '/clock', change)).now); }
}

const child = `
process.stdout.write([process.env.KUBECONFIG, process.env.KELSON_CONTROL, process.env.KELSON_CONTROL_TOKEN].join('\\0') + '\\n');
process.stdin.resume();
process.stdin.on('end', () => process.exit(0));
process.stdin.on('error', () => process.exit(0));
`;

/**
 * Starts a server that keeps nothing, and resolves when it is ready.
 * @param {import('./index').Options} [options]
 * @returns {Promise<import('./index').Server>}
 */
async function kelson(options = {}) {
  const { binary = process.env.KELSON_BINARY || 'kelson', crds = [], manifests = [], as, groups = [], keep, verbose = false, timeout = 30000 } = options;
  const args = ['run'];
  for (const path of crds) args.push('--crds', path);
  for (const path of manifests) args.push('--manifests', path);
  if (as !== undefined) args.push('--as', as);
  for (const group of groups) args.push('--as-group', group);
  if (keep !== undefined) args.push('--keep', keep);
  if (verbose) args.push('--verbose');
  args.push('--', process.execPath, '-e', child);

  const server = spawn(binary, args, { stdio: ['pipe', 'pipe', 'pipe'] });
  let stderr = '';
  server.stderr.setEncoding('utf8').on('data', (text) => {
    stderr = (stderr + text).slice(-16384);
    if (verbose) process.stderr.write(text);
  });
  server.stdin.on('error', () => {}); // it has ended, and 'exit' says why
  const ended = new Promise((resolve) => server.once('close', (code, signal) => resolve({ code, signal })));

  let timer;
  try {
    const [kubeconfig, url, token] = await new Promise((resolve, reject) => {
      let stdout = '';
      server.stdout.setEncoding('utf8').on('data', (text) => {
        stdout += text;
        const end = stdout.indexOf('\n');
        if (end >= 0) resolve(stdout.slice(0, end).split('\0'));
      });
      server.once('error', (err) => {
        reject(err.code === 'ENOENT'
          ? new Error(`the program ${binary} was not found: install kelson, or set KELSON_BINARY to its path`, { cause: err })
          : err);
      });
      ended.then(({ code, signal }) => reject(new Error(`kelson ended with ${signal || `exit code ${code}`}: ${stderr.trim()}`)));
      timer = setTimeout(() => reject(new Error(`kelson was not ready within ${timeout} ms: ${stderr.trim()}`)), timeout);
    });
    // A test that does not stop the server is not held up by it.
    for (const handle of [server, server.stdin, server.stdout, server.stderr]) handle.unref();
    const stop = async () => {
      server.ref();
      server.stdin.end();
      const { code, signal } = await ended;
      if (code !== 0) throw new Error(`kelson ended with ${signal || `exit code ${code}`}: ${stderr.trim()}`);
    };
    let stopping;
    const stopOnce = () => (stopping ??= stop());
    return { kubeconfig, control: new Control(url, token), stop: stopOnce, ...(Symbol.asyncDispose ? { [Symbol.asyncDispose]: stopOnce } : {}) };
  } catch (err) {
    server.kill();
    throw err;
  } finally {
    clearTimeout(timer);
  }
}

module.exports = kelson;
module.exports.kelson = kelson;
module.exports.default = kelson;

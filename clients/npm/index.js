// A Kubernetes API server for tests. It is built on 'kelson run', which stops the server
// when the command that it runs ends; that command is a small node that prints KUBECONFIG
// and waits until its standard input is closed. So a test that crashes leaves nothing behind.
'use strict';

const { spawn } = require('node:child_process');

const child = `
process.stdout.write(process.env.KUBECONFIG + '\\n');
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
    const kubeconfig = await new Promise((resolve, reject) => {
      let stdout = '';
      server.stdout.setEncoding('utf8').on('data', (text) => {
        stdout += text;
        const end = stdout.indexOf('\n');
        if (end >= 0) resolve(stdout.slice(0, end));
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
    return { kubeconfig, stop: stopOnce, ...(Symbol.asyncDispose ? { [Symbol.asyncDispose]: stopOnce } : {}) };
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

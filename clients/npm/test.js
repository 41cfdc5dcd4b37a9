'use strict';

const assert = require('node:assert');
const { once } = require('node:events');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { spawnSync } = require('node:child_process');
const test = require('node:test');
const k8s = require('@kubernetes/client-node');
const { kelson } = require('./index.js');

const found = spawnSync(process.env.KELSON_BINARY || 'kelson', ['version']).status === 0;
const options = { skip: found ? false : 'kelson is neither on PATH nor in KELSON_BINARY', timeout: 120000 };

function connect(server) {
  const config = new k8s.KubeConfig();
  config.loadFromFile(server.kubeconfig);
  return config;
}

test('list, informer and apply', options, async () => {
  const server = await kelson();
  try {
    const config = connect(server);
    const core = config.makeApiClient(k8s.CoreV1Api);

    const namespaces = (await core.listNamespace()).items.map((n) => n.metadata.name);
    assert.ok(namespaces.includes('default'), `got the namespaces ${namespaces}, want default among them`);

    const informer = k8s.makeInformer(config, '/api/v1/namespaces/default/configmaps', () => core.listNamespacedConfigMap({ namespace: 'default' }));
    const added = new Promise((resolve, reject) => {
      informer.on('add', (object) => { if (object.metadata.name === 'one') resolve(object); });
      informer.on('error', reject);
    });
    await informer.start();
    await core.createNamespacedConfigMap({ namespace: 'default', body: { metadata: { name: 'one' }, data: { a: '1' } } });
    assert.deepStrictEqual((await added).data, { a: '1' });
    await informer.stop();

    const applied = await core.patchNamespacedConfigMap(
      { name: 'two', namespace: 'default', fieldManager: 'test', force: true, body: { apiVersion: 'v1', kind: 'ConfigMap', metadata: { name: 'two' }, data: { b: '2' } } },
      k8s.setHeaderOptions('Content-Type', k8s.PatchStrategy.ServerSideApply),
    );
    assert.strictEqual(applied.metadata.managedFields[0].manager, 'test');
    assert.deepStrictEqual(applied.data, { b: '2' });
  } finally {
    await server.stop();
  }
  assert.strictEqual(fs.existsSync(server.kubeconfig), false, 'the kubeconfig is still there after the end');
});

test('a state comes back, requests fail, and the clock moves', options, async () => {
  const server = await kelson();
  try {
    const { control } = server;
    const core = connect(server).makeApiClient(k8s.CoreV1Api);
    const names = async () => (await core.listNamespacedConfigMap({ namespace: 'default' })).items.map((c) => c.metadata.name);
    const create = (name) => core.createNamespacedConfigMap({ namespace: 'default', body: { metadata: { name } } });
    await create('before');
    const had = await names();
    await control.save();
    await create('after');
    await control.restore();
    assert.deepStrictEqual(await names(), had);

    await control.fault({ rule: { verb: 'create', resource: 'configmaps' }, fail: { code: 503, reason: 'ServiceUnavailable', message: 'not today' }, times: 1 });
    await assert.rejects(create('one'), (err) => err.code === 503 && /not today/.test(err.body));
    await create('one');
    assert.deepStrictEqual(await control.hits(), [2]);
    await control.clearFaults();

    await control.clock({ freeze: '2030-01-02T03:04:05Z' });
    assert.strictEqual((await create('two')).metadata.creationTimestamp.toISOString(), '2030-01-02T03:04:05.000Z');

    const config = new k8s.KubeConfig();
    config.loadFromFile(await control.user('jane'));
    await assert.rejects(config.makeApiClient(k8s.CoreV1Api).listNamespace(), { code: 403 });
    await assert.rejects(control.restore('nothing'), /there is no snapshot "nothing"/);
    await assert.rejects(control.fault({}), /one of delay, fail, drop and loseAnswer/);
  } finally {
    await server.stop();
  }
});

test('custom resources, and a user without rights', options, async () => {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'kelson-'));
  fs.writeFileSync(path.join(dir, 'crd.json'), JSON.stringify({
    apiVersion: 'apiextensions.k8s.io/v1', kind: 'CustomResourceDefinition', metadata: { name: 'orders.shop.example.com' },
    spec: { group: 'shop.example.com', scope: 'Namespaced', names: { plural: 'orders', kind: 'Order' },
      versions: [{ name: 'v1', served: true, storage: true, schema: { openAPIV3Schema: { type: 'object', 'x-kubernetes-preserve-unknown-fields': true } } }] },
  }));
  const server = await kelson({ crds: [dir], as: 'jane' });
  try {
    const orders = connect(server).makeApiClient(k8s.CustomObjectsApi);
    await assert.rejects(orders.listNamespacedCustomObject({ group: 'shop.example.com', version: 'v1', namespace: 'default', plural: 'orders' }), { code: 403 });
  } finally {
    await server.stop();
    fs.rmSync(dir, { recursive: true });
  }
});

test('what goes wrong is said', options, async () => {
  await assert.rejects(kelson({ binary: '/nowhere/kelson' }), /was not found: install kelson, or set KELSON_BINARY/);
  await assert.rejects(kelson({ crds: ['/nowhere/crds'] }), /exit code 1: kelson: .*\/nowhere\/crds/);
});

test('a program that forgets to stop the server ends, and so does the server', options, async () => {
  const script = `require(${JSON.stringify(path.join(__dirname, 'index.js'))})().then((s) => console.log(s.kubeconfig))`;
  const run = spawnSync(process.execPath, ['-e', script], { encoding: 'utf8', timeout: 60000 });
  assert.strictEqual(run.status, 0, run.stderr);
  const kubeconfig = run.stdout.trim();
  if (fs.existsSync(kubeconfig)) { // the server is about to end
    const watcher = fs.watch(path.dirname(kubeconfig));
    if (fs.existsSync(kubeconfig)) await once(watcher, 'change', { signal: AbortSignal.timeout(30000) });
    watcher.close();
  }
});

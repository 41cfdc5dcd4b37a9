"""Tests of kelson.py, and an example of its use: python3 -m unittest."""

import os
import shutil
import unittest

import kelson

try:
    import kubernetes
except ImportError:
    kubernetes = None

FOUND = os.environ.get("KELSON_BINARY") or shutil.which("kelson")


@unittest.skipUnless(FOUND, "kelson is neither on PATH nor in KELSON_BINARY")
class TestServer(unittest.TestCase):
    def test_ends_with_its_block(self):
        with kelson.start() as server:
            self.assertTrue(os.path.exists(server.kubeconfig))
        self.assertFalse(os.path.exists(server.kubeconfig), "the kubeconfig is still there after the end")
        server.stop()

    def test_says_what_went_wrong(self):
        with self.assertRaisesRegex(kelson.Error, "was not found: install kelson, or set KELSON_BINARY"):
            kelson.start(binary="/nowhere/kelson")
        with self.assertRaisesRegex(kelson.Error, "exit code 1: kelson: .*/nowhere/crds"):
            kelson.start(crds=["/nowhere/crds"])

    @unittest.skipUnless(kubernetes, "the package kubernetes is not installed (Debian: python3-kubernetes)")
    def test_control(self):
        with kelson.start() as server:
            api = kubernetes.client.CoreV1Api(kubernetes.config.new_client_from_config(server.kubeconfig))
            had = [n.metadata.name for n in api.list_namespace().items]
            server.control.save()
            api.create_namespace({"metadata": {"name": "new"}})
            server.control.restore()
            self.assertEqual([n.metadata.name for n in api.list_namespace().items], had)
            server.control.fault(rule={"verb": "list"}, fail={"code": 429, "message": "not now"}, times=1)
            with self.assertRaisesRegex(kubernetes.client.ApiException, "not now"):
                api.list_config_map_for_all_namespaces()
            self.assertEqual(server.control.hits(), [1])
            server.control.clear_faults()
            self.assertEqual(server.control.clock(freeze="2030-01-02T03:04:05Z"), "2030-01-02T03:04:05Z")
            with self.assertRaisesRegex(kelson.Error, 'there is no snapshot "nothing"'):
                server.control.restore("nothing")

    @unittest.skipUnless(kubernetes, "the package kubernetes is not installed (Debian: python3-kubernetes)")
    def test_list_watch_and_patch(self):
        with kelson.start() as server:
            api = kubernetes.client.CoreV1Api(kubernetes.config.new_client_from_config(server.kubeconfig))
            self.assertIn("default", [n.metadata.name for n in api.list_namespace().items])

            body = {"metadata": {"name": "one"}, "data": {"a": "1"}}
            api.create_namespaced_config_map("default", body)
            api.patch_namespaced_config_map("one", "default", {"data": {"a": "2"}})
            watch = kubernetes.watch.Watch()
            for event in watch.stream(api.list_namespaced_config_map, "default", timeout_seconds=30):
                if event["object"].metadata.name == "one":
                    self.assertEqual(event["object"].data, {"a": "2"})
                    watch.stop()
                    break
            else:
                self.fail("the watch ended, and no event was about the object")

    @unittest.skipUnless(kubernetes, "the package kubernetes is not installed (Debian: python3-kubernetes)")
    def test_user_without_rights(self):
        with kelson.start(user="jane", groups=["developers"]) as server:
            api = kubernetes.client.CoreV1Api(kubernetes.config.new_client_from_config(server.kubeconfig))
            with self.assertRaises(kubernetes.client.ApiException) as refused:
                api.list_namespaced_secret("default")
            self.assertEqual(refused.exception.status, 403)


if __name__ == "__main__":
    unittest.main()

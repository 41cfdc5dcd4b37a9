package etcdtest_test

import (
	"testing"

	"github.com/apikeel/kelson/storage/etcd/etcdtest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDataAndEndpointsOutliveMembers(t *testing.T) {
	for name, end := range map[string]func(*etcdtest.Cluster, int){
		"stop": (*etcdtest.Cluster).Stop,
		"kill": (*etcdtest.Cluster).Kill,
	} {
		t.Run(name, func(t *testing.T) {
			c := etcdtest.Start(t, etcdtest.TLS())
			client := c.Client(t)
			before := c.Endpoints()
			if _, err := client.Put(t.Context(), "k", "v"); err != nil {
				t.Fatal(err)
			}
			end(c, 0)
			c.Restart(0)
			resp, err := client.Get(t.Context(), "k")
			if err != nil || len(resp.Kvs) != 1 || string(resp.Kvs[0].Value) != "v" {
				t.Fatalf("after restart: %v, %v", resp, err)
			}
			if after := c.Endpoints(); after[0] != before[0] {
				t.Fatalf("endpoint moved from %s to %s", before[0], after[0])
			}
		})
	}
}

func TestThreeMembers(t *testing.T) {
	c := etcdtest.Start(t, etcdtest.Members(3))
	client := c.Client(t)
	if _, err := client.Put(t.Context(), "k", "v"); err != nil {
		t.Fatal(err)
	}
	old := c.Leader()
	c.Kill(old)
	if leader := c.Leader(); leader == old {
		t.Fatalf("member %d leads although it was killed", old)
	}
	c.Restart(old)
	c.Leader()
	if _, err := client.Get(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
}

//go:build linux

package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

const (
	namespace      = "storm"       // of what clients list
	writeNamespace = "storm-write" // of what clients write
	adminNamespace = "storm-admin" // of what the administrator writes

	fillers = 8
)

type fields = map[string]any

// dataFolder returns a folder with the data of a scenario, filling it unless an earlier
// run has done so. The server that fills it has no memory limit.
func dataFolder(ctx context.Context, o *options, kind serverKind, data string) (string, error) {
	name := kind.name()
	if data != smallData {
		name += fmt.Sprintf("-large-%dx%d", o.objects, o.objectBytes)
	}
	if data != largeData {
		name += fmt.Sprintf("-small-%dx%d", o.small, o.smallBytes)
	}
	root, err := filepath.Abs(o.data)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, name)
	mark := filepath.Join(dir, "filled")
	if _, err := os.Stat(mark); err == nil {
		return dir, nil
	}
	// What is there was not filled to the end.
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
		return "", err
	}
	began := time.Now()
	port, err := freePort()
	if err != nil {
		return "", err
	}
	s, err := kind.start(dir, port, nil)
	if err != nil {
		return "", err
	}
	defer s.stop()
	if err := s.waitReady(ctx); err != nil {
		return "", err
	}
	if err := fill(ctx, o, s, data); err != nil {
		return "", fmt.Errorf("filling %s: %w", kind.name(), err)
	}
	s.stop()
	fmt.Fprintf(o.progress, "storm: filled %s in %.1f s\n", dir, time.Since(began).Seconds())
	return dir, os.WriteFile(mark, nil, 0o600)
}

// fill creates the namespaces, the rights of the clients, and what they list.
func fill(ctx context.Context, o *options, s *server, data string) error {
	admin := newClient(adminUser, clientOptions{})
	defer admin.close()
	create := func(ctx context.Context, path string, object fields) error {
		body, err := json.Marshal(object)
		if err != nil {
			return err
		}
		if _, err = admin.call(ctx, http.MethodPost, s.url+path, mediaJSON, body); isStatus(err, http.StatusConflict) {
			return nil
		}
		return err
	}
	for _, name := range []string{namespace, writeNamespace, adminNamespace} {
		if err := create(ctx, "/api/v1/namespaces", fields{"apiVersion": "v1", "kind": "Namespace", "metadata": fields{"name": name}}); err != nil {
			return err
		}
	}
	const rbac = "rbac.authorization.k8s.io"
	all := []string{"get", "list", "watch", "create", "patch", "delete"}
	if err := create(ctx, "/apis/"+rbac+"/v1/clusterroles", fields{
		"apiVersion": rbac + "/v1", "kind": "ClusterRole", "metadata": fields{"name": stormGroup},
		"rules": []any{
			fields{"apiGroups": []string{""}, "resources": []string{"secrets", "configmaps", "events"}, "verbs": all},
			fields{"apiGroups": []string{"coordination.k8s.io"}, "resources": []string{"leases"}, "verbs": all},
		},
	}); err != nil {
		return err
	}
	if err := create(ctx, "/apis/"+rbac+"/v1/clusterrolebindings", fields{
		"apiVersion": rbac + "/v1", "kind": "ClusterRoleBinding", "metadata": fields{"name": stormGroup},
		"roleRef":  fields{"apiGroup": rbac, "kind": "ClusterRole", "name": stormGroup},
		"subjects": []any{fields{"apiGroup": rbac, "kind": "Group", "name": stormGroup}},
	}); err != nil {
		return err
	}
	if data != largeData {
		if err := inParallel(ctx, o.small, fillers, func(ctx context.Context, i int) error {
			return create(ctx, "/api/v1/namespaces/"+namespace+"/configmaps", fields{
				"apiVersion": "v1", "kind": "ConfigMap", "metadata": fields{"name": fmt.Sprintf("small-%05d", i)},
				"data": fields{"value": randomText(o.smallBytes * 3 / 4)},
			})
		}); err != nil {
			return err
		}
	}
	if data == smallData {
		return nil
	}
	return inParallel(ctx, o.objects, fillers, func(ctx context.Context, i int) error {
		return create(ctx, "/api/v1/namespaces/"+namespace+"/secrets", fields{
			"apiVersion": "v1", "kind": "Secret", "metadata": fields{"name": fmt.Sprintf("large-%04d", i)},
			"data": fields{"value": randomText(o.objectBytes)},
		})
	})
}

// randomText returns random bytes in base64. They cannot be compressed.
func randomText(size int) string {
	b := make([]byte, size)
	_, _ = rand.Read(b) // never fails
	return base64.StdEncoding.EncodeToString(b)
}

package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"time"
)

// nobody is the user that the image and its data folder have.
const nobody = 65534

// descriptor points to a blob of an image.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    map[string]string `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// image returns an OCI image layout as a tarball, which 'docker load', 'podman load' and
// 'skopeo copy oci-archive:' read. It has one layer with the program, also under the name
// kube-apiserver where the image of that server has it, and an empty data folder. It has
// no base: the program is static and needs nothing else.
func image(program []byte, version string, t target, at time.Time) ([]byte, error) {
	layer, err := tarball(at,
		file{name: "kelson", mode: 0o755, content: program},
		file{name: "data/", mode: 0o700, owner: nobody},
		file{name: "tmp/", mode: 0o1777},
		file{name: "usr/", mode: 0o755}, file{name: "usr/local/", mode: 0o755}, file{name: "usr/local/bin/", mode: 0o755},
		file{name: "usr/local/bin/kube-apiserver", mode: 0o777, link: "/kelson"},
	)
	if err != nil {
		return nil, err
	}
	compressed, err := gzipped(layer)
	if err != nil {
		return nil, err
	}
	files := []file{
		{name: "oci-layout", mode: 0o644, content: []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		{name: "blobs/", mode: 0o755}, {name: "blobs/sha256/", mode: 0o755},
	}
	blob := func(mediaType string, content []byte) descriptor {
		digest := fmt.Sprintf("%x", sha256.Sum256(content))
		files = append(files, file{name: "blobs/sha256/" + digest, mode: 0o644, content: content})
		return descriptor{MediaType: mediaType, Digest: "sha256:" + digest, Size: len(content)}
	}
	config, err := json.Marshal(map[string]any{
		"created": at.Format(time.RFC3339), "architecture": t.arch, "os": t.os,
		"config": map[string]any{
			"User": fmt.Sprintf("%d:%d", nobody, nobody), "Entrypoint": []string{"/kelson"},
			"Env":          []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			"Cmd":          []string{"serve", "--data-dir", "/data", "--bind-address", "0.0.0.0"},
			"ExposedPorts": map[string]any{"6443/tcp": struct{}{}}, "Volumes": map[string]any{"/data": struct{}{}}, "WorkingDir": "/data",
			"Labels": map[string]string{"org.opencontainers.image.version": version, "org.opencontainers.image.title": "kelson", "org.opencontainers.image.licenses": "Apache-2.0"},
		},
		"rootfs":  map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
		"history": []any{map[string]any{"created": at.Format(time.RFC3339), "created_by": "kelson internal/release"}},
	})
	if err != nil {
		return nil, err
	}
	configBlob := blob("application/vnd.oci.image.config.v1+json", config)
	layerBlob := blob("application/vnd.oci.image.layer.v1.tar+gzip", compressed)
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": configBlob, "layers": []descriptor{layerBlob},
	})
	if err != nil {
		return nil, err
	}
	top := blob("application/vnd.oci.image.manifest.v1+json", manifest)
	top.Platform = map[string]string{"os": t.os, "architecture": t.arch}
	name := "kelson:" + version
	top.Annotations = map[string]string{"org.opencontainers.image.ref.name": version}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []descriptor{top}})
	if err != nil {
		return nil, err
	}
	// Older versions of Docker read this file instead of the index.
	docker, err := json.Marshal([]any{map[string]any{
		"Config": blobPath(configBlob), "RepoTags": []string{name}, "Layers": []string{blobPath(layerBlob)},
	}})
	if err != nil {
		return nil, err
	}
	files = append(files, file{name: "index.json", mode: 0o644, content: index}, file{name: "manifest.json", mode: 0o644, content: docker})
	return tarball(at, files...)
}

// blobPath is the file of a blob in the layout.
func blobPath(d descriptor) string { return "blobs/sha256/" + d.Digest[len("sha256:"):] }

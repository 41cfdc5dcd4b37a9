package controlplane

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/apikeel/kelson/builtin/core"
	"github.com/apikeel/kelson/storage"
)

const (
	// componentTimeout bounds how long a component has to say how it is.
	componentTimeout = 20 * time.Second
	maxComponentText = 10 << 10
)

// components are the components that the componentstatuses API reports: the ones on this
// machine, at their usual ports, and the store, which clients know as etcd.
func components(backends []storage.Backend) []core.Component {
	client := &http.Client{Timeout: componentTimeout, Transport: &http.Transport{
		// They have made their certificates themselves.
		TLSClientConfig:   &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true},
		DisableKeepAlives: true,
	}}
	probe := func(url string) func(context.Context) (corev1.ConditionStatus, string, error) {
		return func(ctx context.Context) (corev1.ConditionStatus, string, error) {
			return probeComponent(ctx, client, url)
		}
	}
	all := []core.Component{
		{Name: "controller-manager", Check: probe("https://127.0.0.1:10257/healthz")},
		{Name: "scheduler", Check: probe("https://127.0.0.1:10259/healthz")},
	}
	for i, backend := range backends {
		all = append(all, core.Component{Name: fmt.Sprintf("etcd-%d", i), Check: func(ctx context.Context) (corev1.ConditionStatus, string, error) {
			ctx, cancel := context.WithTimeout(ctx, componentTimeout)
			defer cancel()
			if _, err := backend.Revision(ctx); err != nil {
				return corev1.ConditionFalse, "", err
			}
			return corev1.ConditionTrue, "ok", nil
		}})
	}
	return all
}

// probeComponent asks a component for its health. Not to be reached is one of
// the answers.
func probeComponent(ctx context.Context, client *http.Client, url string) (corev1.ConditionStatus, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return corev1.ConditionUnknown, "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return corev1.ConditionFalse, err.Error(), nil
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxComponentText))
	switch {
	case err != nil:
		return corev1.ConditionFalse, "", err
	case resp.StatusCode < http.StatusOK || resp.StatusCode >= http.StatusBadRequest:
		return corev1.ConditionFalse, fmt.Sprintf("HTTP probe failed with statuscode: %d", resp.StatusCode), nil
	}
	return corev1.ConditionTrue, string(body), nil
}

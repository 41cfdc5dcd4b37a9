package audit

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/apikeel/kelson/internal/configfile"
)

// This file is the webhook backend.

const (
	// webhookTimeout is the timeout of one attempt.
	webhookTimeout = 30 * time.Second
	// maxSends is the largest number of batches in flight.
	maxSends = 32
	// maxReply is how many bytes of a response are read, so that the connection can be
	// reused.
	maxReply = 64 << 10
)

// webhook sends batches of events to a server.
type webhook struct {
	client  *http.Client
	url     string
	agent   string
	backoff wait.Backoff
}

func openWebhook(c *WebhookConfig) (sendFunc, func() error, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.ConfigFile
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, nil, configfile.Unquoted(err)
	}
	config.Timeout, config.Dial = webhookTimeout, c.Dial
	config.Wrap(c.Certificates.Wrap)
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, nil, err
	}
	target, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, nil, err
	}
	target.Path = path.Join("/", target.Path)
	target.RawQuery = url.Values{"timeout": {webhookTimeout.String()}}.Encode()
	w := &webhook{
		client: client, url: target.String(), agent: rest.DefaultKubernetesUserAgent(),
		backoff: wait.Backoff{Duration: c.InitialBackoff, Factor: 1.5, Jitter: 0.2, Steps: 5},
	}
	return w.send, func() error { client.CloseIdleConnections(); return nil }, nil
}

// send posts a batch as an EventList, and retries on any error.
func (w *webhook) send(ctx context.Context, batch []entry) error {
	var body bytes.Buffer
	body.WriteString(`{"kind":"EventList","apiVersion":"` + GroupVersion + `","metadata":{},"items":[`)
	for i, e := range batch {
		if i > 0 {
			body.WriteByte(',')
		}
		body.Write(e.body)
	}
	body.WriteString("]}\n")

	backoff := w.backoff
	for {
		err := w.post(ctx, body.Bytes())
		if err == nil || backoff.Steps <= 1 {
			return err
		}
		delay := time.NewTimer(backoff.Step())
		select {
		case <-delay.C:
		case <-ctx.Done():
			delay.Stop()
			return err
		}
	}
}

func (w *webhook) post(ctx context.Context, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, */*")
	req.Header.Set("User-Agent", w.agent)
	resp, err := w.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	reply, _ := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if resp.StatusCode < 200 || resp.StatusCode > 206 {
		return fmt.Errorf("the audit webhook answers %s: %.200s", resp.Status, reply)
	}
	return nil
}

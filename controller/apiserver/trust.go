package apiserver

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"maps"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/builtin/bootstrap"
	"github.com/apikeel/kelson/internal/clock"
	"github.com/apikeel/kelson/resource"
)

// The ConfigMap in which servers behind this one find whom to believe.
const (
	trustName    = "extension-apiserver-authentication"
	clientCAKey  = "client-ca-file"
	headerCAKey  = "requestheader-client-ca-file"
	headerPrefix = "requestheader-"
)

// Trust is whom a server believes who a user is. Certificates are PEM.
type Trust struct {
	// Clients are the authorities of users.
	Clients []byte
	// Proxies are the authorities of servers that may speak for users, and Names the
	// names that they may have; none are all.
	Proxies []byte
	Names   []string
	// The headers in which they do; empty are the usual ones.
	UsernameHeaders, UIDHeaders, GroupHeaders, ExtraHeaderPrefixes []string
	// NoUID leaves out the headers with the UID.
	NoUID bool
}

// data returns what is in the ConfigMap.
func (t *Trust) data() (map[string]string, error) {
	data := map[string]string{}
	if len(t.Clients) > 0 {
		data[clientCAKey] = joinCertificates("", string(t.Clients))
	}
	if len(t.Proxies) == 0 {
		return data, nil
	}
	data[headerCAKey] = joinCertificates("", string(t.Proxies))
	usual := func(values []string, otherwise string) []string {
		if len(values) == 0 {
			return []string{otherwise}
		}
		return values
	}
	lists := map[string][]string{
		"allowed-names": t.Names, "username-headers": usual(t.UsernameHeaders, "X-Remote-User"),
		"uid-headers": usual(t.UIDHeaders, "X-Remote-Uid"), "group-headers": usual(t.GroupHeaders, "X-Remote-Group"),
		"extra-headers-prefix": usual(t.ExtraHeaderPrefixes, "X-Remote-Extra-"),
	}
	if t.NoUID {
		delete(lists, "uid-headers")
	}
	for key, list := range lists {
		if list == nil {
			list = []string{}
		}
		text, err := json.Marshal(list)
		if err != nil {
			return nil, err
		}
		data[headerPrefix+key] = string(text)
	}
	return data, nil
}

// trustEvery is how often it is looked whether the ConfigMap is missing or out of date, as
// in kube-apiserver.
const trustEvery = time.Minute

// StartTrust publishes who vouches for users, and who may speak for them, and again if that
// is deleted or changes, until ctx ends. trust is called each time: certificates may have
// been renewed. Whoever knows that they have calls again.
func (s *Server) StartTrust(ctx context.Context, trust func() (Trust, error)) (again func(), err error) {
	ensure := func() error {
		t, err := trust()
		if err != nil {
			return err
		}
		return s.EnsureTrust(ctx, t)
	}
	if err := ensure(); err != nil {
		return nil, err
	}
	again = func() {
		if err := ensure(); err != nil && ctx.Err() == nil {
			s.Logger.Warn("the authorities for API servers behind this one could not be published", "configmap", trustName, "error", err)
		}
	}
	clock.Background(ctx, s.Running, trustEvery, again)
	return again, nil
}

// EnsureTrust publishes who vouches for users, and who may speak for them, once.
func (s *Server) EnsureTrust(ctx context.Context, trust Trust) error {
	if err := s.EnsureNamespaces(ctx); err != nil {
		return err
	}
	data, err := trust.data()
	if err != nil || len(data) == 0 {
		return err
	}
	return s.Ensure(ctx, []resource.Object{&corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: trustName, Namespace: metav1.NamespaceSystem},
		Data:       data,
	}}, joinTrust)
}

// joinTrust adds what this server trusts to what others do that share the store:
// who is behind one of them may be asked by all.
func joinTrust(existing, wanted resource.Object) (resource.Object, bootstrap.Action) {
	now, want := existing.(*corev1.ConfigMap).DeepCopy(), wanted.(*corev1.ConfigMap)
	before := maps.Clone(now.Data)
	if now.Data == nil {
		now.Data = map[string]string{}
	}
	for key, value := range want.Data {
		switch key {
		case clientCAKey, headerCAKey:
			now.Data[key] = joinCertificates(now.Data[key], value)
		default:
			now.Data[key] = joinNames(now.Data[key], value)
		}
	}
	if reflect.DeepEqual(before, now.Data) {
		return existing, bootstrap.Keep
	}
	return now, bootstrap.Update
}

// joinNames joins two lists, but an empty list of names stands for all.
func joinNames(a, b string) string {
	var x, y []string
	if json.Unmarshal([]byte(a), &x) != nil || json.Unmarshal([]byte(b), &y) != nil {
		return b
	}
	if len(x) == 0 || len(y) == 0 {
		return "[]"
	}
	for _, name := range y {
		if !slices.Contains(x, name) {
			x = append(x, name)
		}
	}
	text, err := json.Marshal(x)
	if err != nil {
		return b
	}
	return string(text)
}

// joinCertificates joins two lists of certificates, without those that have
// expired.
func joinCertificates(a, b string) string {
	var out bytes.Buffer
	seen := map[string]bool{}
	for rest := []byte(a + "\n" + b); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return out.String()
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil || seen[string(block.Bytes)] || time.Now().After(cert.NotAfter) {
			continue
		}
		seen[string(block.Bytes)] = true
		_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: block.Bytes}) // into memory
	}
}

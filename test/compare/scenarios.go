//go:build linux

package main

import (
	"context"
	_ "embed"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// scenario is a set of flags that both servers are started with.
type scenario struct {
	name, about string
	// flags may contain {{dir}}, a folder of the server, which has the files.
	flags []string
	files map[string]string
	// alone has one client only: what it writes decides about requests of everybody.
	alone bool
}

func scenarios() []scenario {
	const every = "--runtime-config=api/all=true"
	gates := func(s string) string { return "--feature-gates=" + s }
	list := []scenario{
		{name: "default", about: "flags at their defaults"},
		{name: "versions", about: "every version is served", flags: []string{every}},
		{name: "alpha", about: "every gate is on, every version is served", flags: []string{gates("AllAlpha=true,AllBeta=true"), every}},
		{name: "beta-off", about: "every beta gate is off", flags: []string{gates("AllBeta=false")}},
		{name: "cbor", about: "CBOR is served and stored", flags: []string{gates("CBORServingAndStorage=true"), every}},
		{name: "encrypted", about: "everything is encrypted, with another prefix", flags: []string{"--encryption-provider-config={{dir}}/encryption.yaml", "--etcd-prefix=/elsewhere"}, files: map[string]string{"encryption.yaml": encryption}},
		{name: "json", about: "stored as JSON, no watch cache", flags: []string{"--storage-media-type=application/json", "--watch-cache=false"}},
		{name: "plugins-on", about: "admission plugins that are off by default", flags: []string{"--enable-admission-plugins=AlwaysPullImages,DenyServiceExternalIPs,ExtendedResourceToleration,LimitPodHardAntiAffinityTopology,NamespaceAutoProvision,NodeRestriction,OwnerReferencesPermissionEnforcement,PodNodeSelector,PodTolerationRestriction"}},
		{name: "plugins-off", about: "no admission plugin that is on by default", flags: []string{"--disable-admission-plugins=CertificateApproval,CertificateSigning,CertificateSubjectRestriction,ClusterTrustBundleAttest,DefaultIngressClass,DefaultStorageClass,DefaultTolerationSeconds,LimitRanger,MutatingAdmissionPolicy,MutatingAdmissionWebhook,NamespaceLifecycle,NodeDeclaredFeatureValidator,PersistentVolumeClaimResize,PodSecurity,PodTopologyLabels,Priority,ResourceQuota,RuntimeClass,ServiceAccount,StorageObjectInUseProtection,TaintNodesByCondition,ValidatingAdmissionPolicy,ValidatingAdmissionWebhook"}},
		{name: "policies", about: "admission policies and webhooks decide about requests", alone: true},
		{name: "abac", about: "anybody may do anything", flags: []string{"--authorization-mode=AlwaysAllow", "--anonymous-auth=true"}},
	}
	for _, version := range []string{"1.36", "1.35", "1.34"} {
		list = append(list, scenario{name: "emulated-" + version, about: "emulates " + version, flags: []string{"--emulated-version=" + version, "--min-compatibility-version=" + version, every}})
	}
	return append(list, gateScenarios()...)
}

const encryption = `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets, configmaps]
  providers:
  - aescbc: {keys: [{name: k, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}]}
  - identity: {}
- resources: ["*.apps", pods]
  providers:
  - aesgcm: {keys: [{name: k, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}]}
- resources: ["*.*"]
  providers:
  - secretbox: {keys: [{name: k, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}]}
`

// definitions are custom resources of several sorts, that all clients use.
//
//go:embed definitions.yaml
var definitions string

const access = `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: compare-jane}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: edit}
subjects: [{kind: User, apiGroup: rbac.authorization.k8s.io, name: jane}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: compare-bob}
rules:
- {apiGroups: ["*"], resources: ["*"], verbs: [get, list, watch]}
- {apiGroups: [""], resources: [configmaps, pods], verbs: [create, patch]}
- {apiGroups: [rbac.authorization.k8s.io], resources: ["*"], verbs: ["*"]}
- {apiGroups: [certificates.k8s.io], resources: ["*"], verbs: ["*"]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: compare-bob}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: compare-bob}
subjects: [{kind: User, apiGroup: rbac.authorization.k8s.io, name: bob}]
`

// prepare makes what all clients share, on both servers.
func prepare(ctx context.Context, p *pair) error {
	var names []string
	for _, text := range strings.Split(access+"---\n"+definitions, "\n---\n") {
		kind, path := "", ""
		switch {
		case strings.Contains(text, "\nkind: ClusterRoleBinding\n"):
			path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
		case strings.Contains(text, "\nkind: ClusterRole\n"):
			path = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
		default:
			path, kind = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "crd"
		}
		for _, s := range []*server{p.reference, p.kelson} {
			a := s.send(ctx, &message{method: "POST", path: path, user: "admin", header: http.Header{"Content-Type": {"application/yaml"}}, body: []byte(text)})
			if a.status != http.StatusCreated {
				return fmt.Errorf("%s: %d %s\n%s", s.name, a.status, a.body, text)
			}
		}
		if kind == "crd" {
			_, rest, _ := strings.Cut(text, "metadata: {name: ")
			name, _, _ := strings.Cut(rest, "}")
			names = append(names, name)
		}
	}
	for _, name := range names {
		if err := p.waitServed(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// waitServed waits until both servers serve a custom resource in all its versions, and have
// it in discovery.
func (p *pair) waitServed(ctx context.Context, name string) error {
	plural, group, _ := strings.Cut(name, ".")
	for _, s := range []*server{p.reference, p.kelson} {
		deadline := time.Now().Add(startPatience)
		for {
			crd := s.send(ctx, &message{method: "GET", path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/" + name, user: "admin"})
			list := s.send(ctx, &message{method: "GET", path: "/apis/" + group + "/v1", user: "admin"})
			if strings.Contains(string(crd.body), `"Established","status":"True"`) || strings.Contains(string(crd.body), `"type":"Established"`) && strings.Contains(string(list.body), `"`+plural+`"`) {
				objects := s.send(ctx, &message{method: "GET", path: "/apis/" + group + "/v1/" + plural, user: "admin"})
				if objects.status == http.StatusOK && strings.Contains(string(list.body), `"`+plural+`"`) {
					break
				}
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("%s does not serve %s: %s", s.name, name, crd.body)
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(pollInterval):
			}
		}
	}
	return nil
}

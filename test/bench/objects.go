package main

import (
	"fmt"
	"strings"
	"time"
)

// namespace is where operations work.
const namespace = "bench"

// filler makes objects as large as they are in clusters.
const filler = "listen=0.0.0.0:8443 timeout=30s retries=5 backend=payments.internal:9000 log=info trace=off cache=64Mi workers=8 "

// configMap is a ConfigMap of 1 KB. Its metadata and data can have more fields, each
// text with a comma before it.
func configMap(name, value, moreMetadata string) string {
	return `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"` + name + `"` + moreMetadata + `},"data":{"value":"` + value +
		`","server.conf":"` + strings.Repeat(filler, 4) + `","client.conf":"` + strings.Repeat(filler, 4) + `"}}`
}

func withVersion(version string) string { return `,"resourceVersion":"` + version + `"` }

// pod is a Pod of two containers, of 2 KB without what defaults add.
func pod(name string, i int) string {
	container := func(name, image string) string {
		return `{"name":"` + name + `","image":"` + image + `","args":["--config=/etc/app/server.conf","--listen=:8443"],` +
			`"ports":[{"name":"` + name + `","containerPort":8443,"protocol":"TCP"}],` +
			`"env":[{"name":"POD_NAME","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}},{"name":"LEVEL","value":"info"},{"name":"REGION","value":"eu-central-1"}],` +
			`"resources":{"requests":{"cpu":"250m","memory":"256Mi"},"limits":{"memory":"512Mi"}},` +
			`"livenessProbe":{"httpGet":{"path":"/livez","port":8443,"scheme":"HTTPS"},"periodSeconds":10},` +
			`"readinessProbe":{"httpGet":{"path":"/readyz","port":8443,"scheme":"HTTPS"},"periodSeconds":5},` +
			`"volumeMounts":[{"name":"config","mountPath":"/etc/app"},{"name":"scratch","mountPath":"/tmp"}],` +
			`"securityContext":{"allowPrivilegeEscalation":false,"readOnlyRootFilesystem":true}}`
	}
	return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"` + name + `","labels":{"app.kubernetes.io/name":"shop","app.kubernetes.io/component":"web","pod-template-hash":"6d4b75cb6d","pick":"p` +
		fmt.Sprint(i%100) + `"},"annotations":{"prometheus.io/scrape":"true","prometheus.io/port":"9102"}},"spec":{"automountServiceAccountToken":false,` +
		`"nodeSelector":{"kubernetes.io/os":"linux"},"tolerations":[{"key":"dedicated","operator":"Equal","value":"web","effect":"NoSchedule"}],` +
		`"volumes":[{"name":"config","configMap":{"name":"shop"}},{"name":"scratch","emptyDir":{"sizeLimit":"1Gi"}}],` +
		`"containers":[` + container("web", "registry.example.com/shop/web:v1.42.0") + `,` + container("proxy", "registry.example.com/mesh/proxy:v2.7.1") + `]}}`
}

// lease is the Lease that a node renews.
func lease(name, version string) string {
	more := ""
	if version != "" {
		more = withVersion(version)
	}
	return `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"` + name + `"` + more + `},"spec":{"holderIdentity":"` + name +
		`","leaseDurationSeconds":40,"renewTime":"` + time.Now().UTC().Format("2006-01-02T15:04:05.000000Z") + `"}}`
}

// Groups of the custom resources, and the one that operations use.
const customGroup = "bench.example.com"

// definition is a CustomResourceDefinition with a schema of usual size.
func definition(plural, kind string) string {
	text := `{"type":"string"}`
	return `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"` + plural + `.` + customGroup +
		`"},"spec":{"group":"` + customGroup + `","scope":"Namespaced","names":{"plural":"` + plural + `","singular":"` + strings.ToLower(kind) + `","kind":"` + kind + `","listKind":"` + kind + `List"},` +
		`"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"status":{}},` +
		`"additionalPrinterColumns":[{"name":"Engine","type":"string","jsonPath":".spec.engine"}],` +
		`"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","required":["engine"],"properties":{` +
		`"engine":{"type":"string","enum":["postgres","mysql"]},"version":` + text + `,"replicas":{"type":"integer","minimum":1,"maximum":9,"default":1},` +
		`"storage":{"type":"object","properties":{"className":` + text + `,"size":{"type":"string","pattern":"^[0-9]+Gi$"},"accessModes":{"type":"array","items":` + text + `}}},` +
		`"users":{"type":"array","maxItems":32,"items":{"type":"object","required":["name"],"properties":{"name":` + text + `,"role":{"type":"string","default":"reader"},"databases":{"type":"array","items":` + text + `}}}},` +
		`"parameters":{"type":"object","additionalProperties":` + text + `}}},` +
		`"status":{"type":"object","properties":{"phase":` + text + `,"conditions":{"type":"array","items":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}}}}}}]}}`
}

// custom is an object of a definition, of about 1 KB.
func custom(kind, name, value string) string {
	return `{"apiVersion":"` + customGroup + `/v1","kind":"` + kind + `","metadata":{"name":"` + name + `","labels":{"team":"payments"}},"spec":{"engine":"postgres","version":"` + value +
		`","replicas":3,"storage":{"className":"fast","size":"100Gi","accessModes":["ReadWriteOnce"]},` +
		`"users":[{"name":"app","role":"owner","databases":["orders","invoices"]},{"name":"reports","databases":["orders"]}],` +
		`"parameters":{"shared_buffers":"2GB","notes":"` + strings.Repeat(filler, 4) + `"}}}`
}

// Paths.
const (
	configMapsPath = "/api/v1/namespaces/" + namespace + "/configmaps"
	podsPath       = "/api/v1/namespaces/" + namespace + "/pods"
	leasesPath     = "/apis/coordination.k8s.io/v1/namespaces/" + namespace + "/leases"
	definitions    = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
)

func customPath(plural, ns string) string {
	return "/apis/" + customGroup + "/v1/namespaces/" + ns + "/" + plural
}

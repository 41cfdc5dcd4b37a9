package podspec

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
)

func checkEnv(e *rules.Errors, env []corev1.EnvVar, p *field.Path) {
	for i := range env {
		v, vp := &env[i], itemOf(p, i)
		if e.NotEmpty(childOf(vp, "name"), v.Name) {
			e.InvalidEach(childOf(vp, "name"), v.Name, validation.IsRelaxedEnvVarName(v.Name))
		}
		if v.ValueFrom != nil {
			checkEnvSource(e, v, childOf(vp, "valueFrom"))
		}
	}
}

func checkEnvSource(e *rules.Errors, v *corev1.EnvVar, p *field.Path) {
	s, found := v.ValueFrom, 0
	if s.FieldRef != nil {
		found++
		checkFieldRef(e, s.FieldRef, childOf(p, "fieldRef"), "metadata.name", "metadata.namespace", "metadata.uid",
			"spec.nodeName", "spec.serviceAccountName", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs")
	}
	if s.ResourceFieldRef != nil {
		found++
		checkResourceFieldRef(e, s.ResourceFieldRef, false, childOf(p, "resourceFieldRef"))
	}
	if r := s.ConfigMapKeyRef; r != nil {
		found++
		checkKeyRef(e, r.Name, r.Key, childOf(p, "configMapKeyRef"))
	}
	if r := s.SecretKeyRef; r != nil {
		found++
		checkKeyRef(e, r.Name, r.Key, childOf(p, "secretKeyRef"))
	}
	if s.FileKeyRef != nil {
		found++
		checkFileKeyRef(e, s.FileKeyRef, childOf(p, "fileKeyRef"))
	}
	switch {
	case found == 0:
		e.Invalid(p, "", "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`")
	case v.Value != "":
		e.Invalid(p, "", "may not be specified when `value` is not empty")
	case found > 1:
		e.Invalid(p, "", "may not have more than one field specified at a time")
	}
}

func checkKeyRef(e *rules.Errors, name, key string, p *field.Path) {
	e.DNSSubdomain(childOf(p, "name"), name)
	if e.NotEmpty(childOf(p, "key"), key) {
		e.InvalidEach(childOf(p, "key"), key, rules.CheckDataKey(key))
	}
}

func checkFileKeyRef(e *rules.Errors, r *corev1.FileKeySelector, p *field.Path) {
	if e.NotEmpty(childOf(p, "key"), r.Key) {
		e.InvalidEach(childOf(p, "key"), r.Key, validation.IsRelaxedEnvVarName(r.Key))
	}
	if e.NotEmpty(childOf(p, "volumeName"), r.VolumeName) {
		e.DNSLabel(childOf(p, "volumeName"), r.VolumeName)
	}
	if e.NotEmpty(childOf(p, "path"), r.Path) {
		checkNoBacksteps(e, r.Path, childOf(p, "path"))
	}
}

func checkEnvFrom(e *rules.Errors, sources []corev1.EnvFromSource, p *field.Path) {
	for i := range sources {
		s, sp := &sources[i], itemOf(p, i)
		if s.Prefix != "" {
			e.InvalidEach(childOf(sp, "prefix"), s.Prefix, validation.IsRelaxedEnvVarName(s.Prefix))
		}
		// Names may be those of generated objects, which end with a dash while
		// they are not complete.
		name := func(name string, p *field.Path) {
			if e.NotEmpty(p, name) {
				e.InvalidEach(p, name, apivalidation.NameIsDNSSubdomain(name, true))
			}
		}
		if s.ConfigMapRef != nil {
			name(s.ConfigMapRef.Name, childOf(sp, "configMapRef", "name"))
		}
		if s.SecretRef != nil {
			name(s.SecretRef.Name, childOf(sp, "secretRef", "name"))
		}
		switch {
		case s.ConfigMapRef == nil && s.SecretRef == nil:
			e.Invalid(p, "", "must specify one of: `configMapRef` or `secretRef`")
		case s.ConfigMapRef != nil && s.SecretRef != nil:
			e.Invalid(p, "", "may not have more than one field specified at a time")
		}
	}
}

// checkFieldRef validates a reference to a field of the pod. supported are the
// fields that can be used here, besides a single label or annotation.
func checkFieldRef(e *rules.Errors, r *corev1.ObjectFieldSelector, p *field.Path, supported ...string) {
	if !e.NotEmpty(childOf(p, "apiVersion"), r.APIVersion) || !e.NotEmpty(childOf(p, "fieldPath"), r.FieldPath) {
		return
	}
	path, subscript, subscripted := cutSubscript(r.FieldPath)
	fail := func(format, arg string) {
		e.Invalid(childOf(p, "fieldPath"), r.FieldPath, "error converting fieldPath: "+fmt.Sprintf(format, arg))
	}
	switch {
	case r.APIVersion != "v1":
		fail("unsupported pod version: %s", r.APIVersion)
	case subscripted && path == "metadata.annotations":
		e.InvalidEach(p, strings.ToLower(subscript), validation.IsQualifiedName(strings.ToLower(subscript)))
	case subscripted && path == "metadata.labels":
		e.InvalidEach(p, subscript, validation.IsQualifiedName(subscript))
	case subscripted:
		fail("field label does not support subscript: %s", r.FieldPath)
	case !isPodField(path):
		fail("field label not supported: %s", path)
	default:
		if path == "spec.host" {
			path = "spec.nodeName"
		}
		rules.OneOf(e, childOf(p, "fieldPath"), path, supported...)
	}
}

// isPodField reports whether a field path can be used in some reference to a
// field of the pod; spec.host is the former name of spec.nodeName.
func isPodField(path string) bool {
	switch path {
	case "metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid",
		"spec.nodeName", "spec.host", "spec.restartPolicy", "spec.serviceAccountName", "spec.schedulerName",
		"status.phase", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs":
		return true
	}
	return false
}

// cutSubscript splits a path such as metadata.labels['key'].
func cutSubscript(path string) (before, subscript string, ok bool) {
	inner, ok := strings.CutSuffix(path, "']")
	if !ok {
		return path, "", false
	}
	before, subscript, ok = strings.Cut(inner, "['")
	if !ok || before == "" {
		return path, "", false
	}
	return before, subscript, true
}

// checkResourceFieldRef validates a reference to a request or limit of a
// container. In a volume the reference must name the container.
func checkResourceFieldRef(e *rules.Errors, r *corev1.ResourceFieldSelector, volume bool, p *field.Path) {
	fields := []string{"limits.cpu", "limits.ephemeral-storage", "limits.memory",
		"requests.cpu", "requests.ephemeral-storage", "requests.memory"}
	_, resource, _ := strings.Cut(r.Resource, ".")
	hugePages := strings.HasPrefix(r.Resource, "requests.hugepages-") || strings.HasPrefix(r.Resource, "limits.hugepages-")
	switch {
	case volume && r.ContainerName == "":
		e.Required(childOf(p, "containerName"), "")
	case r.Resource == "":
		e.Required(childOf(p, "resource"), "")
	case !hugePages:
		rules.OneOf(e, childOf(p, "resource"), r.Resource, fields...)
	}

	if r.Divisor.IsZero() || !hugePages && !slices.Contains(fields, r.Resource) {
		return
	}
	divisors, kind := "1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei", resource
	switch {
	case hugePages:
		kind = "hugepages"
	case resource == "cpu":
		divisors = "1m and 1"
	case resource == "ephemeral-storage":
		kind = "local ephemeral storage"
	}
	known := strings.FieldsFunc(strings.ReplaceAll(divisors, " and ", ", "), func(r rune) bool { return r == ',' || r == ' ' })
	if !slices.Contains(known, r.Divisor.String()) {
		e.Invalid(childOf(p, "divisor"), r.Resource, fmt.Sprintf("only divisor's values %s are supported with the %s resource", divisors, kind))
	}
}

// checkFileKeyVolumes reports environment variables that are read from a file in
// a volume other than an emptyDir of the pod.
func checkFileKeyVolumes(e *rules.Errors, spec *corev1.PodSpec, p *field.Path) {
	EachContainer(spec, p, func(c *corev1.Container, at Place) {
		for i := range c.Env {
			if c.Env[i].ValueFrom == nil || c.Env[i].ValueFrom.FileKeyRef == nil {
				continue
			}
			name := c.Env[i].ValueFrom.FileKeyRef.VolumeName
			np := childOf(itemOf(childOf(at.Path(), "env"), i), "valueFrom", "fileKeyRef", "volumeName")
			// The last volume of a name counts; duplicates are reported anyway.
			var volume *corev1.Volume
			for j := range spec.Volumes {
				if spec.Volumes[j].Name == name {
					volume = &spec.Volumes[j]
				}
			}
			if volume == nil {
				e.Add(field.NotFound(np, name))
			} else if volume.EmptyDir == nil {
				e.Invalid(np, name, "referenced volume must be of type emptyDir")
			}
		}
	})
}

package controlplane

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/resource"
)

// countLogs has it counted who reads the logs of pods without caring which kubelet
// they are from, whether or not there is a log.
func countLogs(groups []resource.Group, to measure.Sink) {
	for _, group := range groups {
		for _, def := range group.Resources {
			if def.Group != "" || def.Resource != "pods" {
				continue
			}
			for i := range def.Subresources {
				if sub := &def.Subresources[i]; sub.Name == "log" {
					sub.Connect = countedLog(sub.Connect, to)
				}
			}
		}
	}
}

func countedLog(c *resource.Connect, to measure.Sink) *resource.Connect {
	verified, unverified := to.Series(measure.PodLogs, "enforce_tls"), to.Series(measure.PodLogs, "skip_tls_allowed")
	counted := *c
	counted.Locate = func(ctx context.Context, target resource.Target, options runtime.Object) (*resource.Location, error) {
		if options.(*corev1.PodLogOptions).InsecureSkipTLSVerifyBackend {
			unverified.Observe(1)
		} else {
			verified.Observe(1)
		}
		return c.Locate(ctx, target, options)
	}
	return &counted
}

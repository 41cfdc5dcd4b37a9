package core

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/podspec"
	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/internal/problems"
	"github.com/apikeel/kelson/resource"
)

// podConnections returns the subresources of pods that connect to the kubelet or to the pod.
func podConnections(k kubelets) []resource.Subresource {
	return []resource.Subresource{
		podStream(k, "attach", "PodAttachOptions", func() *corev1.PodAttachOptions { return &corev1.PodAttachOptions{} },
			func(o *corev1.PodAttachOptions) stream {
				return stream{container: &o.Container, query: streamQuery(o.Stdin, o.Stdout, o.Stderr, o.TTY, nil)}
			}),
		podStream(k, "exec", "PodExecOptions", func() *corev1.PodExecOptions { return &corev1.PodExecOptions{} },
			func(o *corev1.PodExecOptions) stream {
				return stream{container: &o.Container, query: streamQuery(o.Stdin, o.Stdout, o.Stderr, o.TTY, o.Command)}
			}),
		podStream(k, "portforward", "PodPortForwardOptions", func() *corev1.PodPortForwardOptions { return &corev1.PodPortForwardOptions{} },
			func(o *corev1.PodPortForwardOptions) stream {
				query := url.Values{}
				if len(o.Ports) > 0 {
					ports := make([]string, len(o.Ports))
					for i, p := range o.Ports {
						ports[i] = strconv.Itoa(int(p))
					}
					query.Set("port", strings.Join(ports, ","))
				}
				return stream{query: query}
			}),
		podLog(k),
		podProxy(),
	}
}

// stream is the request to a kubelet: its query, and the container unless it is for the
// whole pod.
type stream struct {
	container *string
	query     url.Values
}

func streamQuery(stdin, stdout, stderr, tty bool, command []string) url.Values {
	query := url.Values{}
	for name, on := range map[string]bool{"input": stdin, "output": stdout, "error": stderr, "tty": tty} {
		if on {
			query.Set(name, "1")
		}
	}
	if len(command) > 0 {
		query["command"] = command
	}
	return query
}

// podStream makes a subresource that carries several streams (exec, attach, port-forward).
func podStream[O runtime.Object](k kubelets, name, kind string, options func() O, read func(O) stream) resource.Subresource {
	verb, translation, gate := name, resource.ToStreams, "TranslateStreamCloseWebsocketRequests"
	if name == "portforward" {
		verb, translation, gate = "portForward", resource.ToTunnel, "PortForwardWebsockets"
	}
	return resource.Subresource{
		Name: name,
		Kind: corev1.SchemeGroupVersion.WithKind(kind),
		Connect: &resource.Connect{
			Methods: []string{http.MethodGet, http.MethodPost},
			Verb:    "create",
			Options: func() runtime.Object { return options() },
			Locate: func(ctx context.Context, target resource.Target, o runtime.Object) (*resource.Location, error) {
				pod, err := target.Get(ctx)
				if err != nil {
					return nil, err
				}
				s := read(o.(O))
				to, translate, err := k.locatePod(ctx, target, pod.(*corev1.Pod), verb, s.container)
				switch {
				case err != nil:
					return nil, err
				case to == nil:
					return nil, errors.NewBadRequest(fmt.Sprintf("pod %s does not have a host assigned", target.Name()))
				}
				to.URL.RawQuery = s.query.Encode()
				to.Upgrade = true
				if translate && k.gates.Enabled(gate) {
					to.Translate = translation
				}
				return to, nil
			},
		},
	}
}

// podLog makes pods/log. A pod without a node has no log.
func podLog(k kubelets) resource.Subresource {
	return resource.Subresource{
		Name: "log",
		Connect: &resource.Connect{
			Methods: []string{http.MethodGet},
			Text:    true,
			Options: func() runtime.Object { return &corev1.PodLogOptions{} },
			Locate: func(ctx context.Context, target resource.Target, options runtime.Object) (*resource.Location, error) {
				o := options.(*corev1.PodLogOptions)
				if k.split && o.Stream == nil {
					o.Stream = new(corev1.LogStreamAll)
				}
				if errs := validateLogOptions(o, k.split); len(errs) > 0 {
					return nil, problems.Invalid(schema.GroupKind{Kind: "PodLogOptions"}, target.Name(), errs)
				}
				pod, err := target.Get(ctx)
				if err != nil {
					return nil, err
				}
				to, _, err := k.locatePod(ctx, target, pod.(*corev1.Pod), "containerLogs", &o.Container)
				if to == nil || err != nil {
					return nil, err
				}
				to.URL.RawQuery = logQuery(o).Encode()
				to.Unverified, to.Flush = o.InsecureSkipTLSVerifyBackend, o.Follow
				return to, nil
			},
		},
	}
}

// locatePod returns the location of a pod, or of a container if container is not nil, at its
// kubelet; nil if the pod has no node.
func (k kubelets) locatePod(ctx context.Context, target resource.Target, pod *corev1.Pod, verb string, container *string,
) (to *resource.Location, translate bool, err error) {
	path := fmt.Sprintf("/%s/%s/%s", verb, pod.Namespace, pod.Name)
	if container != nil {
		name, err := chooseContainer(pod, *container)
		if err != nil {
			return nil, false, err
		}
		path += "/" + name
	}
	if pod.Spec.NodeName == "" {
		return nil, false, nil
	}
	if to, translate, err = k.locate(ctx, target, "pods", pod.Spec.NodeName); err == nil {
		to.URL.Path = path
	}
	return to, translate, err
}

// chooseContainer returns the container of a name, or the only one if the name is empty.
func chooseContainer(pod *corev1.Pod, name string) (string, error) {
	var names []string
	for c := range podspec.Containers(&pod.Spec) {
		names = append(names, c.Name)
	}
	switch {
	case name != "":
		for _, n := range names {
			if n == name {
				return name, nil
			}
		}
		return "", errors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", name, pod.Name))
	case len(pod.Spec.Containers) == 1:
		return pod.Spec.Containers[0].Name, nil
	case len(pod.Spec.Containers) == 0:
		return "", errors.NewBadRequest(fmt.Sprintf("a container name must be specified for pod %s", pod.Name))
	}
	return "", errors.NewBadRequest(fmt.Sprintf("a container name must be specified for pod %s, choose one of: %s", pod.Name, names))
}

func validateLogOptions(o *corev1.PodLogOptions, split bool) field.ErrorList {
	var e rules.Errors
	if o.TailLines != nil && *o.TailLines < 0 {
		e.Invalid(field.NewPath("tailLines"), *o.TailLines, apivalidation.IsNegativeErrorMsg)
	}
	if o.LimitBytes != nil && *o.LimitBytes < 1 {
		e.Invalid(field.NewPath("limitBytes"), *o.LimitBytes, "must be greater than 0")
	}
	if o.SinceSeconds != nil && o.SinceTime != nil {
		e.Forbidden(field.NewPath(""), "at most one of `sinceTime` or `sinceSeconds` may be specified")
	} else if o.SinceSeconds != nil && *o.SinceSeconds < 1 {
		e.Invalid(field.NewPath("sinceSeconds"), *o.SinceSeconds, "must be greater than 0")
	}
	switch path := field.NewPath("stream"); {
	case !split && o.Stream != nil:
		e.Forbidden(path, "may not be specified")
	case split:
		rules.OneOf(&e, path, *o.Stream, corev1.LogStreamAll, corev1.LogStreamStderr, corev1.LogStreamStdout)
		if *o.Stream != corev1.LogStreamAll && o.TailLines != nil {
			e.Forbidden(field.NewPath(""), "`tailLines` and specific `stream` are mutually exclusive for now")
		}
	}
	return field.ErrorList(e)
}

func logQuery(o *corev1.PodLogOptions) url.Values {
	query := url.Values{}
	for name, on := range map[string]bool{"follow": o.Follow, "previous": o.Previous, "timestamps": o.Timestamps} {
		if on {
			query.Set(name, "true")
		}
	}
	for name, n := range map[string]*int64{"sinceSeconds": o.SinceSeconds, "tailLines": o.TailLines, "limitBytes": o.LimitBytes} {
		if n != nil {
			query.Set(name, strconv.FormatInt(*n, 10))
		}
	}
	if o.SinceTime != nil {
		query.Set("sinceTime", o.SinceTime.Format(time.RFC3339))
	}
	if o.Stream != nil {
		query.Set("stream", *o.Stream)
	}
	return query
}

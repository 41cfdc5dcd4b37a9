package podspec

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
)

// The probes of a container, by the names of their fields.
const (
	livenessProbe  = "livenessProbe"
	readinessProbe = "readinessProbe"
	startupProbe   = "startupProbe"
)

// handler is the action of a probe or a lifecycle hook; at most one field should
// be set.
type handler struct {
	exec      *corev1.ExecAction
	httpGet   *corev1.HTTPGetAction
	tcpSocket *corev1.TCPSocketAction
	grpc      *corev1.GRPCAction
	sleep     *corev1.SleepAction
}

func checkProbe(e *rules.Errors, probe *corev1.Probe, name string, container *field.Path) {
	if probe == nil {
		return
	}
	p := childOf(container, name)
	checkHandler(e, handler{probe.Exec, probe.HTTPGet, probe.TCPSocket, probe.GRPC, nil}, nil, p)
	e.NonNegative(childOf(p, "initialDelaySeconds"), int64(probe.InitialDelaySeconds))
	e.NonNegative(childOf(p, "timeoutSeconds"), int64(probe.TimeoutSeconds))
	e.NonNegative(childOf(p, "periodSeconds"), int64(probe.PeriodSeconds))
	e.NonNegative(childOf(p, "successThreshold"), int64(probe.SuccessThreshold))
	e.NonNegative(childOf(p, "failureThreshold"), int64(probe.FailureThreshold))
	grace := probe.TerminationGracePeriodSeconds
	if grace != nil && *grace <= 0 {
		e.Invalid(childOf(p, "terminationGracePeriodSeconds"), *grace, "must be greater than 0")
	}
	if name == readinessProbe {
		if grace != nil {
			e.Invalid(childOf(p, "terminationGracePeriodSeconds"), grace, "must not be set for readinessProbes")
		}
	} else if probe.SuccessThreshold != 1 {
		e.Invalid(childOf(p, "successThreshold"), probe.SuccessThreshold, "must be 1")
	}
}

func checkHandler(e *rules.Errors, h handler, grace *int64, p *field.Path) {
	found := false
	first := func(name string) bool {
		if found {
			e.Forbidden(childOf(p, name), "may not specify more than 1 handler type")
			return false
		}
		found = true
		return true
	}
	if h.exec != nil && first("exec") && len(h.exec.Command) == 0 {
		e.Required(childOf(p, "exec", "command"), "")
	}
	if h.httpGet != nil && first("httpGet") {
		checkHTTPGet(e, h.httpGet, childOf(p, "httpGet"))
	}
	if h.tcpSocket != nil && first("tcpSocket") {
		checkPortNumberOrName(e, h.tcpSocket.Port, childOf(p, "tcpSocket", "port"))
	}
	if h.grpc != nil && first("grpc") {
		checkPortNumberOrName(e, intstr.FromInt32(h.grpc.Port), childOf(p, "grpc", "port"))
		rules.OneOfPointer(e, childOf(p, "grpc", "mode"), h.grpc.Mode, corev1.GRPCProbeModePlaintext, corev1.GRPCProbeModeTLS)
	}
	if h.sleep != nil && first("sleep") && grace != nil && (h.sleep.Seconds < 0 || h.sleep.Seconds > *grace) {
		e.Invalid(childOf(p, "sleep"), h.sleep.Seconds,
			fmt.Sprintf("must be non-negative and less than terminationGracePeriodSeconds (%d)", *grace))
	}
	if !found {
		e.Required(p, "must specify a handler type")
	}
}

func checkHTTPGet(e *rules.Errors, a *corev1.HTTPGetAction, p *field.Path) {
	e.NotEmpty(childOf(p, "path"), a.Path)
	checkPortNumberOrName(e, a.Port, childOf(p, "port"))
	rules.OneOf(e, childOf(p, "scheme"), a.Scheme, corev1.URISchemeHTTP, corev1.URISchemeHTTPS)
	for _, h := range a.HTTPHeaders {
		e.InvalidEach(childOf(p, "httpHeaders"), h.Name, validation.IsHTTPHeaderName(h.Name))
	}
	rules.OneOfPointer(e, childOf(p, "protocol"), a.Protocol, corev1.HTTPProtocolHTTP1, corev1.HTTPProtocolHTTP2)
	if a.Protocol != nil && *a.Protocol == corev1.HTTPProtocolHTTP2 {
		if a.Scheme != corev1.URISchemeHTTP {
			e.Invalid(childOf(p, "protocol"), *a.Protocol, "is only supported with HTTP (H2C)")
		} else if a.Host != "" {
			e.Invalid(childOf(p, "host"), a.Host, "must be empty when `protocol` is \"HTTP2\"")
		}
	}
}

func checkPortNumberOrName(e *rules.Errors, port intstr.IntOrString, p *field.Path) {
	if port.Type == intstr.String {
		e.InvalidEach(p, port.StrVal, validation.IsValidPortName(port.StrVal))
	} else {
		e.InvalidEach(p, port.IntValue(), validation.IsValidPortNum(port.IntValue()))
	}
}

func checkStopSignal(e *rules.Errors, signal corev1.Signal, os *corev1.PodOS, p *field.Path) {
	switch {
	case os == nil:
		e.Forbidden(p, "may not be set for containers with empty `spec.os.name`")
	case os.Name == corev1.Windows:
		rules.OneOf(e, p, signal, corev1.SIGKILL, corev1.SIGTERM)
	case os.Name == corev1.Linux:
		rules.OneOf(e, p, signal, linuxSignals()...)
	}
}

// linuxSignals lists the signals of Linux in the order of their names.
func linuxSignals() []corev1.Signal {
	names := strings.Fields(`ABRT ALRM BUS CHLD CLD CONT FPE HUP ILL INT IO IOT KILL PIPE POLL PROF PWR QUIT SEGV STKFLT
		STOP SYS TERM TRAP TSTP TTIN TTOU URG USR1 USR2 VTALRM WINCH XCPU XFSZ RTMIN RTMAX`)
	for i := 1; i <= 15; i++ {
		names = append(names, fmt.Sprintf("RTMIN+%d", i))
		if i < 15 {
			names = append(names, fmt.Sprintf("RTMAX-%d", i))
		}
	}
	signals := make([]corev1.Signal, len(names))
	for i, name := range names {
		signals[i] = corev1.Signal("SIG" + name)
	}
	slices.Sort(signals)
	return signals
}

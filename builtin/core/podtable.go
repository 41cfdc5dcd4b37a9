package core

import (
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/builtin/podspec"
	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// nodeLost is the status reason of pods on unreachable nodes.
const nodeLost = "NodeLost"

func podColumns() []resource.Column {
	spec, status := corev1.PodSpec{}.SwaggerDoc(), corev1.PodStatus{}.SwaggerDoc()
	return []resource.Column{
		rules.NameColumn(),
		{Name: "Ready", Type: "string", Description: "The aggregate readiness state of this pod for accepting traffic."},
		{Name: "Status", Type: "string", Description: "The aggregate status of the containers in this pod."},
		{Name: "Restarts", Type: "string", Description: "The number of times the containers in this pod have been restarted and when the last container in this pod has restarted."},
		rules.AgeColumn(),
		{Name: "IP", Type: "string", Priority: 1, Description: status["podIP"]},
		{Name: "Node", Type: "string", Priority: 1, Description: spec["nodeName"]},
		{Name: "Nominated Node", Type: "string", Priority: 1, Description: status["nominatedNodeName"]},
		{Name: "Readiness Gates", Type: "string", Priority: 1, Description: spec["readinessGates"]},
	}
}

func podCells(pod *corev1.Pod) []any {
	s := summarize(pod)
	var restarts any = strconv.Itoa(s.restarts)
	if s.restarts != 0 && !s.lastRestart.IsZero() {
		restarts = resource.Text{fmt.Sprintf("%d (", s.restarts), resource.Since(s.lastRestart), " ago)"}
	}
	ip := ""
	if len(pod.Status.PodIPs) > 0 {
		ip = pod.Status.PodIPs[0].IP
	}
	gates := ""
	if n := len(pod.Spec.ReadinessGates); n > 0 {
		open := 0
		for _, g := range pod.Spec.ReadinessGates {
			if c := podCondition(&pod.Status, g.ConditionType); c != nil && c.Status == corev1.ConditionTrue {
				open++
			}
		}
		gates = fmt.Sprintf("%d/%d", open, n)
	}
	return []any{
		pod.Name, fmt.Sprintf("%d/%d", s.ready, s.total), s.reason, restarts, resource.Since(pod.CreationTimestamp.Time),
		orElse(ip, "<none>"), orElse(pod.Spec.NodeName, "<none>"), orElse(pod.Status.NominatedNodeName, "<none>"), orElse(gates, "<none>"),
	}
}

// podRowConditions marks the rows of pods that have finished as Completed.
func podRowConditions(pod *corev1.Pod) []metav1.TableRowCondition {
	c := metav1.TableRowCondition{Type: metav1.RowCompleted, Status: metav1.ConditionTrue, Reason: string(pod.Status.Phase)}
	switch pod.Status.Phase {
	case corev1.PodSucceeded:
		c.Message = "The pod has completed successfully."
	case corev1.PodFailed:
		c.Message = "The pod failed."
	default:
		return nil
	}
	return []metav1.TableRowCondition{c}
}

// podSummary is the cells Ready, Status and Restarts of a pod.
type podSummary struct {
	ready, total, restarts int
	lastRestart            time.Time
	reason                 string
}

// count adds the restarts of a container.
func (s *podSummary) count(c *corev1.ContainerStatus) {
	s.restarts += int(c.RestartCount)
	if end := c.LastTerminationState.Terminated; end != nil && s.lastRestart.Before(end.FinishedAt.Time) {
		s.lastRestart = end.FinishedAt.Time
	}
}

func summarize(pod *corev1.Pod) podSummary {
	s := podSummary{total: len(pod.Spec.Containers), reason: orElse(pod.Status.Reason, string(pod.Status.Phase))}
	if c := podCondition(&pod.Status, corev1.PodScheduled); c != nil && c.Reason == corev1.PodReasonSchedulingGated {
		s.reason = corev1.PodReasonSchedulingGated
	}
	sidecars := map[string]bool{}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; podspec.IsSidecar(c) {
			sidecars[c.Name] = true
			s.total++
		}
	}
	// Restarts of init containers do not count once the pod is initialized, except for
	// sidecars.
	running := s
	initializing := summarizeInit(pod, sidecars, &s, &running)
	if c := podCondition(&pod.Status, corev1.PodInitialized); !initializing || c != nil && c.Status == corev1.ConditionTrue {
		running.ready, running.reason = s.ready, s.reason
		s = running
		summarizeRunning(pod, &s)
	}
	switch {
	case pod.DeletionTimestamp == nil:
	case pod.Status.Reason == nodeLost:
		s.reason = "Unknown"
	case pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed:
		s.reason = "Terminating"
	}
	return s
}

// summarizeInit reports whether the pod waits for an init container.
func summarizeInit(pod *corev1.Pod, sidecars map[string]bool, s, running *podSummary) bool {
	for i := range pod.Status.InitContainerStatuses {
		c := &pod.Status.InitContainerStatuses[i]
		s.count(c)
		if sidecars[c.Name] {
			running.count(c)
		}
		end, waiting := c.State.Terminated, c.State.Waiting
		switch {
		case end != nil && end.ExitCode == 0:
			continue
		case sidecars[c.Name] && c.Started != nil && *c.Started:
			if c.Ready {
				s.ready++
			}
			continue
		case end != nil:
			s.reason = "Init:" + endReason(end)
		case waiting != nil && waiting.Reason != "" && waiting.Reason != "PodInitializing":
			s.reason = "Init:" + waiting.Reason
		default:
			s.reason = fmt.Sprintf("Init:%d/%d", i, len(pod.Spec.InitContainers))
		}
		return true
	}
	return false
}

func summarizeRunning(pod *corev1.Pod, s *podSummary) {
	running, failure := false, ""
	for i := len(pod.Status.ContainerStatuses) - 1; i >= 0; i-- {
		c := &pod.Status.ContainerStatuses[i]
		s.count(c)
		switch {
		case c.State.Waiting != nil && c.State.Waiting.Reason != "":
			s.reason = c.State.Waiting.Reason
		case c.State.Terminated != nil:
			s.reason = endReason(c.State.Terminated)
			if c.State.Terminated.ExitCode != 0 {
				failure = s.reason
			}
		case c.Ready && c.State.Running != nil:
			running = true
			s.ready++
		}
	}
	if s.reason != "Completed" {
		return
	}
	// A pod has not completed while one of its containers runs.
	switch {
	case running && isReady(pod):
		s.reason = "Running"
	case failure != "":
		s.reason = failure
	case running:
		s.reason = "NotReady"
	}
}

func endReason(end *corev1.ContainerStateTerminated) string {
	switch {
	case end.Reason != "":
		return end.Reason
	case end.Signal != 0:
		return fmt.Sprintf("Signal:%d", end.Signal)
	}
	return fmt.Sprintf("ExitCode:%d", end.ExitCode)
}

func isReady(pod *corev1.Pod) bool {
	c := podCondition(&pod.Status, corev1.PodReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

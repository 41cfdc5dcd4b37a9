package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/apikeel/kelson/test/bench/servers"
)

const (
	leaseNamespace = "kube-node-lease"
	leaseSeconds   = 40
	// registering is how many nodes come at a time.
	registering = 32
)

// nodes are simulated kubelets: each lists and watches the pods that are bound to it,
// says of each that it runs, deletes those that are to go, and renews its lease.
type nodes struct {
	client kubernetes.Interface
	of     size
	ctx    context.Context // of what goes on between phases; stop ends it
	cancel context.CancelCauseFunc
	group  sync.WaitGroup
}

// newClient returns a client without a limit of its own.
func newClient(v *servers.Server) kubernetes.Interface {
	return kubernetes.NewForConfigOrDie(&rest.Config{
		Host: v.URL, BearerToken: v.Token, QPS: -1, UserAgent: "cluster",
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
		ContentConfig:   rest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf", AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json"},
	})
}

func newNodes(v *servers.Server, of size) *nodes {
	n := &nodes{client: newClient(v), of: of}
	n.ctx, n.cancel = context.WithCancelCause(context.Background())
	return n
}

// stop ends all nodes and waits for them.
func (n *nodes) stop() {
	n.cancel(nil)
	n.group.Wait()
}

// failed returns why a node has given up.
func (n *nodes) failed() error {
	if err := context.Cause(n.ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func nodeName(i int) string { return fmt.Sprintf("node-%05d", i) }

// register creates all nodes with their leases and starts them.
func (n *nodes) register(ctx context.Context) error {
	namespaces := n.client.CoreV1().Namespaces()
	if _, err := namespaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: leaseNamespace}}, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return inParallel(ctx, registering, n.of.Nodes, func(ctx context.Context, i int) error {
		name := nodeName(i)
		node, err := n.client.CoreV1().Nodes().Create(ctx, newNode(name), metav1.CreateOptions{})
		if err != nil {
			return err
		}
		node.Status = nodeStatus()
		if _, err := n.client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil && !apierrors.IsConflict(err) {
			return err
		} else if err != nil {
			if err := n.setStatus(ctx, name); err != nil {
				return err
			}
		}
		seconds, now := int32(leaseSeconds), metav1.NowMicro()
		lease, err := n.client.CoordinationV1().Leases(leaseNamespace).Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: node.UID}}},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &seconds, RenewTime: &now},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		watched := make(chan struct{})
		n.group.Go(func() { n.keepAlive(i, lease) })
		n.group.Go(func() { n.runPods(name, watched) })
		select {
		case <-watched:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-n.ctx.Done():
			return context.Cause(n.ctx)
		}
	})
}

// setStatus sets the status of a node that a controller has changed in between.
func (n *nodes) setStatus(ctx context.Context, name string) error {
	for {
		node, err := n.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		node.Status = nodeStatus()
		if _, err = n.client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
			return err
		}
	}
}

func newNode(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "node.kubernetes.io/instance-type": "simulated",
	}}}
}

func nodeStatus() corev1.NodeStatus {
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("32"), corev1.ResourceMemory: resource.MustParse("256Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	now := metav1.Now()
	status := corev1.NodeStatus{Capacity: room, Allocatable: room, NodeInfo: corev1.NodeSystemInfo{
		KubeletVersion: "v1.37.1", OperatingSystem: "linux", Architecture: "amd64", OSImage: "simulated", ContainerRuntimeVersion: "simulated://1", KernelVersion: "6.1",
	}}
	for kind, value := range map[corev1.NodeConditionType]corev1.ConditionStatus{
		corev1.NodeReady: corev1.ConditionTrue, corev1.NodeMemoryPressure: corev1.ConditionFalse, corev1.NodeDiskPressure: corev1.ConditionFalse, corev1.NodePIDPressure: corev1.ConditionFalse,
	} {
		status.Conditions = append(status.Conditions, corev1.NodeCondition{Type: kind, Status: value, Reason: "Simulated", LastHeartbeatTime: now, LastTransitionTime: now})
	}
	return status
}

// keepAlive renews the lease of a node. Nodes do not do it at the same time.
func (n *nodes) keepAlive(i int, lease *coordinationv1.Lease) {
	first := n.of.Heartbeat * time.Duration(i) / time.Duration(n.of.Nodes)
	for next := time.Now().Add(first); ; next = next.Add(n.of.Heartbeat) {
		if servers.Wait(n.ctx, time.Until(next)) != nil {
			return
		}
		now := metav1.NowMicro()
		lease.Spec.RenewTime = &now
		renewed, err := n.client.CoordinationV1().Leases(leaseNamespace).Update(n.ctx, lease, metav1.UpdateOptions{})
		if err != nil {
			n.fail(fmt.Errorf("lease %s: %w", lease.Name, err))
			return
		}
		lease = renewed
	}
}

// fail ends all nodes, unless they have ended already.
func (n *nodes) fail(err error) {
	if n.ctx.Err() == nil {
		n.cancel(err)
	}
}

// runPods lists and watches the pods of a node until the end. It closes watched when the
// watch is open.
func (n *nodes) runPods(name string, watched chan struct{}) {
	options := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", name).String()}
	pods := n.client.CoreV1().Pods(metav1.NamespaceAll)
	handled := map[string]string{} // what was last done, by UID: the server is told once
	for n.ctx.Err() == nil {
		list, err := pods.List(n.ctx, options)
		if err == nil {
			for i := range list.Items {
				err = errors.Join(err, n.handle(&list.Items[i], handled))
			}
		}
		var w watch.Interface
		if err == nil {
			from := options
			from.ResourceVersion = list.ResourceVersion
			w, err = pods.Watch(n.ctx, from)
		}
		if err != nil {
			n.fail(fmt.Errorf("pods of %s: %w", name, err))
			return
		}
		if watched != nil {
			close(watched)
			watched = nil
		}
		for event := range w.ResultChan() {
			pod, isPod := event.Object.(*corev1.Pod)
			if !isPod {
				break // an error, such as a version that is too old: list again
			}
			if event.Type == watch.Deleted {
				delete(handled, string(pod.UID))
				continue
			}
			if err := n.handle(pod, handled); err != nil {
				n.fail(fmt.Errorf("pod %s: %w", pod.Name, err))
			}
		}
		w.Stop()
	}
}

// handle does what a kubelet does with a pod: it starts it, or ends it.
func (n *nodes) handle(pod *corev1.Pod, handled map[string]string) error {
	uid := string(pod.UID)
	pods := n.client.CoreV1().Pods(pod.Namespace)
	var err error
	switch {
	case pod.DeletionTimestamp != nil && handled[uid] != "ended":
		handled[uid] = "ended"
		now := int64(0)
		err = pods.Delete(n.ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &pod.UID}})
	case pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodPending && handled[uid] == "":
		handled[uid] = "started"
		running := pod.DeepCopy()
		running.Status = runningStatus(pod)
		if _, err = pods.UpdateStatus(n.ctx, running, metav1.UpdateOptions{}); apierrors.IsConflict(err) {
			delete(handled, uid) // the event of the other change is under way
			err = nil
		}
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) || n.ctx.Err() != nil {
		return nil
	}
	return err
}

// runningStatus is the status of a pod whose containers run and are ready.
func runningStatus(pod *corev1.Pod) corev1.PodStatus {
	now := metav1.Now()
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(pod.UID))
	sum := hash.Sum32()
	ip := fmt.Sprintf("10.%d.%d.%d", byte(sum>>16), byte(sum>>8), byte(sum))
	status := *pod.Status.DeepCopy()
	status.Phase, status.StartTime = corev1.PodRunning, &now
	status.HostIP, status.HostIPs = "192.0.2.1", []corev1.HostIP{{IP: "192.0.2.1"}}
	status.PodIP, status.PodIPs = ip, []corev1.PodIP{{IP: ip}}
	scheduled := status.Conditions
	status.Conditions = nil
	for _, kind := range []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	for _, c := range scheduled {
		if c.Type == corev1.PodScheduled {
			status.Conditions = append(status.Conditions, c)
		}
	}
	yes := true
	status.ContainerStatuses = nil
	for _, c := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, ImageID: c.Image, ContainerID: "simulated://" + string(pod.UID) + "-" + c.Name, Ready: true, Started: &yes,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		})
	}
	return status
}

// inParallel calls a function for 0 to n-1, several at a time, and returns the first error.
func inParallel(ctx context.Context, workers, n int, call func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan int)
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for i := range next {
				if err := call(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := range n {
		if ctx.Err() != nil {
			break
		}
		next <- i
	}
	close(next)
	group.Wait()
	return context.Cause(ctx)
}

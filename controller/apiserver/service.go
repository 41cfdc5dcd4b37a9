package apiserver

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/apikeel/kelson/builtin/bootstrap"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
)

// kubernetes is the name of the service by which the members of a cluster reach
// its API.
const kubernetes = "kubernetes"

// ServiceConfig is what a Service has to know.
type ServiceConfig struct {
	Server *Server
	// ClusterIP is the address of the service, NodePort its port on nodes; 0 is none.
	ClusterIP string
	NodePort  int32
	// IP and Port are where this server is.
	IP   string
	Port int32
	// Shared: other servers may use the same store, and be endpoints too.
	Shared bool
	// Endpoints is one of the constants below; empty is EndpointLeases if the store is
	// shared. Servers is how many there are, for EndpointCount.
	Endpoints string
	Servers   int
	// Leases has a key for every server, with EndpointLeases.
	Leases storage.Backend
	// Replaces: another process may serve at the same address, and end when this one is
	// ready.
	Replaces bool
	// Ready is closed when this server can be asked.
	Ready <-chan struct{}
}

// Service keeps the service kubernetes, and its endpoints.
type Service struct {
	ServiceConfig
	*Server
	endpoint *ownKey
}

// NewService returns a Service that does nothing yet.
func NewService(c ServiceConfig) *Service {
	switch {
	case !c.Shared && c.Endpoints != EndpointNone:
		c.Endpoints = ""
	case c.Endpoints == "":
		c.Endpoints = EndpointLeases
	}
	return &Service{ServiceConfig: c, Server: c.Server, endpoint: newOwnKey(c.Leases, leasePrefix+c.IP, "the endpoint of the service kubernetes", c.Server.Logger)}
}

// Start makes the service, and again if it is deleted, and has its endpoints kept until
// ctx ends.
func (s *Service) Start(ctx context.Context) error {
	labels := map[string]string{"component": "apiserver", "provider": kubernetes}
	service := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Name: kubernetes, Namespace: metav1.NamespaceDefault, Labels: labels},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: s.ClusterIP, SessionAffinity: corev1.ServiceAffinityNone,
			IPFamilyPolicy: new(corev1.IPFamilyPolicySingleStack),
			Ports:          []corev1.ServicePort{{Name: "https", Port: 443, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(s.Port)}},
		},
	}
	if s.NodePort != 0 {
		service.Spec.Type, service.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, s.NodePort
	}
	switch err := s.Ensure(ctx, []resource.Object{service}, s.pointService); {
	case apierrors.IsInvalid(err) && ctx.Err() == nil:
		// Its address can be reserved without it: by a server that has crashed between the two, until a
		// repair frees it. That must not keep this server from starting.
		s.Logger.Warn("the service kubernetes could not be created; it is tried again", "error", err)
	case err != nil:
		return err
	}
	s.recreate(ctx, endpointsEvery, service)
	return s.startEndpoints(ctx)
}

// pointService brings the port up to date that the service leads to, if there is
// no other server whose port it could be.
func (s *Service) pointService(existing, wanted resource.Object) (resource.Object, bootstrap.Action) {
	now, want := existing.(*corev1.Service), wanted.(*corev1.Service)
	if s.Shared || len(now.Spec.Ports) != 1 || now.Spec.Ports[0].TargetPort == want.Spec.Ports[0].TargetPort {
		return existing, bootstrap.Keep
	}
	now = now.DeepCopy()
	now.Spec.Ports[0].TargetPort = want.Spec.Ports[0].TargetPort
	return now, bootstrap.Update
}

// Stop takes this server out of the endpoints. It does not come back.
func (s *Service) Stop(ctx context.Context) error {
	if s.Endpoints != "" && s.Endpoints != EndpointNone {
		s.endpoint.takeBack(ctx, s.removeEndpoint)
	}
	return nil
}

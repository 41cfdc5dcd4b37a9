package kelsontest_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/apikeel/kelson/kelsontest"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
)

// Most tests need nothing but a server and a client. In a test, Start takes the test
// instead of returning an error, and stops the server when the test ends.
func Example() {
	server, err := kelsontest.New()
	if err != nil {
		log.Fatal(err)
	}
	defer server.Stop()
	client, err := kubernetes.NewForConfig(server.Config())
	if err != nil {
		log.Fatal(err)
	}
	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}}
	made, err := client.CoreV1().ConfigMaps("default").Create(context.Background(), settings, metav1.CreateOptions{})
	fmt.Println(made.Name, err)
	// Output: settings <nil>
}

// started is a server for an example, and a client. In a test it is Start.
func started() (*kelsontest.Server, *kubernetes.Clientset) {
	server, err := kelsontest.New(kelsontest.NoControllers())
	if err != nil {
		log.Fatal(err)
	}
	return server, kubernetes.NewForConfigOrDie(server.Config())
}

// The second update of a status is told that somebody else was faster: does the
// controller try again?
func ExampleServer_On() {
	server, client := started()
	defer server.Stop()
	ctx := context.Background()
	maps := client.CoreV1().ConfigMaps("default")
	counter, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "counter"}}, metav1.CreateOptions{})
	if err != nil {
		log.Fatal(err)
	}
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "configmaps"}, "counter", errors.New("changed"))
	fault := server.On(kelsontest.Rule{Verb: "update", Resource: "configmaps"}, kelsontest.First(2, kelsontest.Fail(conflict)))
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		_, err := maps.Update(ctx, counter, metav1.UpdateOptions{})
		return err
	})
	fmt.Println(err, "after", fault.Hits(), "requests")
	// Output: <nil> after 3 requests
}

// The answer to a create gets lost on the way: the object is there, and the client
// does not know.
func ExampleLoseAnswer() {
	server, client := started()
	defer server.Stop()
	server.On(kelsontest.Rule{Verb: "create", Resource: "configmaps"}, kelsontest.Nth(1, kelsontest.LoseAnswer()))
	once := func() error {
		once := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "once"}}
		_, err := client.CoreV1().ConfigMaps("default").Create(context.Background(), once, metav1.CreateOptions{})
		return err
	}
	fmt.Println(once() != nil)
	fmt.Println(once())
	// Output:
	// true
	// configmaps "once" already exists
}

// A request waits until the test lets it go on.
func ExampleHold() {
	server, client := started()
	defer server.Stop()
	gate := make(chan struct{})
	fault := server.On(kelsontest.Rule{Verb: "list", Resource: "pods"}, kelsontest.Hold(gate))
	listed := make(chan error)
	go func() {
		_, err := client.CoreV1().Pods("").List(context.Background(), metav1.ListOptions{})
		listed <- err
	}()
	for fault.Hits() == 0 {
		time.Sleep(time.Millisecond)
	}
	fmt.Println("the list is under way")
	close(gate)
	fmt.Println(<-listed)
	// Output:
	// the list is under way
	// <nil>
}

// Slow answers, for clients that give up.
func ExampleDelay() {
	server, client := started()
	defer server.Stop()
	server.On(kelsontest.Rule{Verb: "get", Resource: "secrets"}, kelsontest.Delay(time.Hour))
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	_, err := client.CoreV1().Secrets("default").Get(ctx, "password", metav1.GetOptions{})
	fmt.Println(errors.Is(err, context.DeadlineExceeded))
	// Output: true
}

// A connection breaks.
func ExampleDrop() {
	server, client := started()
	defer server.Stop()
	server.On(kelsontest.Rule{Verb: "list", Resource: "nodes"}, kelsontest.Nth(1, kelsontest.Drop()))
	for range 2 {
		_, err := client.CoreV1().Nodes().List(context.Background(), metav1.ListOptions{})
		fmt.Println(err == nil)
	}
	// Output:
	// false
	// true
}

// Watches end from time to time; a client begins another.
func ExampleServer_EndWatches() {
	server, client := started()
	defer server.Stop()
	watch, err := client.CoreV1().Pods("").Watch(context.Background(), metav1.ListOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(server.EndWatches(kelsontest.Rule{Resource: "pods"}), "watch ended")
	_, more := <-watch.ResultChan()
	fmt.Println(more)
	// Output:
	// 1 watch ended
	// false
}

// The history is gone: who watches has to list anew.
func ExampleServer_CompactHistory() {
	server, client := started()
	defer server.Stop()
	pods, err := client.CoreV1().Pods("").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		log.Fatal(err)
	}
	if err := server.CompactHistory(); err != nil {
		log.Fatal(err)
	}
	watch, err := client.CoreV1().Pods("").Watch(context.Background(), metav1.ListOptions{ResourceVersion: pods.ResourceVersion})
	if err == nil {
		event := <-watch.ResultChan()
		err = apierrors.FromObject(event.Object)
	}
	fmt.Println(apierrors.IsResourceExpired(err))
	// Output: true
}

// The token of a service account ends while its owner is at work.
func ExampleServer_ExpireTokens() {
	server, _ := started()
	defer server.Stop()
	robot := kubernetes.NewForConfigOrDie(server.Token("robot", "system:masters"))
	who := func() {
		_, err := robot.AuthenticationV1().SelfSubjectReviews().Create(context.Background(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		fmt.Println(err)
	}
	who()
	server.ExpireTokens()
	who()
	// Output:
	// <nil>
	// Unauthorized
}

// The clock stands still, so that stamps can be compared.
func ExampleClock() {
	server, client := started()
	defer server.Stop()
	server.Clock().Freeze(time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC))
	for _, name := range []string{"a", "b"} {
		made, err := client.CoreV1().ConfigMaps("default").Create(context.Background(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(made.Name, made.CreationTimestamp.UTC().Format(time.RFC3339))
		server.Clock().Advance(time.Minute)
	}
	// Output:
	// a 2024-02-29T12:00:00Z
	// b 2024-02-29T12:01:00Z
}

// Every subtest begins with the same state.
func ExampleServer_Restore() {
	server, client := started()
	defer server.Stop()
	ctx := context.Background()
	clean, err := server.Snapshot()
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		made, err := client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "same-name"}}, metav1.CreateOptions{})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("created", made.Name)
		if err := server.Restore(clean); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// created same-name
	// created same-name
}

// What exactly does a client ask for?
func ExampleServer_Record() {
	server, _ := started()
	defer server.Stop()
	recording := server.Record(kelsontest.Rule{User: "controller"})
	client := kubernetes.NewForConfigOrDie(server.User("controller", "system:masters"))
	ctx := context.Background()
	_, _ = client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
	_, _ = client.AppsV1().Deployments("default").Get(ctx, "web", metav1.GetOptions{})
	for _, request := range recording.Requests() {
		fmt.Println(request)
	}
	// Output:
	// create configmaps default
	// get deployments.apps default/web → 404
}

// Somebody who may do nothing yet.
func ExampleServer_User() {
	server, _ := started()
	defer server.Stop()
	jane := kubernetes.NewForConfigOrDie(server.User("jane", "developers"))
	_, err := jane.CoreV1().Secrets("default").List(context.Background(), metav1.ListOptions{})
	fmt.Println(err)
	// Output: secrets is forbidden: User "jane" cannot list resource "secrets" in API group "" in the namespace "default"
}

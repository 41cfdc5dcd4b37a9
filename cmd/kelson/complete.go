package main

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
)

const (
	// completeTimeout is how long a shell waits for the server.
	completeTimeout = 3 * time.Second
	// completeNames is how many names a shell offers at most.
	completeNames = 500
)

// completeArguments gives commands whose usage line has KIND, RESOURCE, NAME or VERB
// the completion of these arguments in shells. Kinds and names come from the server that
// the kubeconfig names.
func completeArguments(cmd *cobra.Command) {
	if words := placeholders(cmd.Use); cmd.ValidArgsFunction == nil && (slices.Contains(words, "KIND") || slices.Contains(words, "RESOURCE")) {
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			return completions(cmd, words, args), cobra.ShellCompDirectiveNoFileComp
		}
	}
	for _, sub := range cmd.Commands() {
		completeArguments(sub)
	}
}

// placeholders returns the arguments in the first form of a usage line, in order:
// "undo [KIND [NAME]] --to MOMENT" has KIND and NAME.
func placeholders(use string) (words []string) {
	use, _, _ = strings.Cut(use, " | ")
	for _, word := range strings.Fields(use)[1:] {
		word = strings.Trim(word, "[].")
		if strings.HasPrefix(word, "-") {
			break
		}
		words = append(words, word)
	}
	return words
}

// completions returns what the next argument can be, each with a description after a tab;
// nothing if the server does not answer, as there is nobody to tell.
func completions(cmd *cobra.Command, words, args []string) []string {
	if len(args) >= len(words) {
		return nil
	}
	word := words[len(args)]
	if word == "VERB" {
		return []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}
	}
	if word != "KIND" && word != "RESOURCE" && word != "NAME" {
		return nil
	}
	a := ask{output: "table"}
	for name, value := range map[string]*string{"kubeconfig": &a.kubeconfig, "context": &a.context, "namespace": &a.namespace, "as": &a.as} {
		*value, _ = cmd.Flags().GetString(name) // empty if the command has no such flag
	}
	t, err := a.connect()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), completeTimeout)
	defer cancel()
	t.config.Timeout = completeTimeout
	if word != "NAME" {
		return t.kinds()
	}
	if len(args) == 0 {
		return nil
	}
	return t.names(ctx, args[len(args)-1])
}

// kinds returns the resources of the server, with the group if they have one.
func (t *target) kinds() (all []string) {
	client, err := discovery.NewDiscoveryClientForConfig(t.config)
	if err != nil {
		return nil
	}
	lists, _ := client.ServerPreferredResources() // those that are there, if some servers do not answer
	for _, list := range lists {
		group, _, _ := strings.Cut(list.GroupVersion, "/")
		for _, resource := range list.APIResources {
			name := resource.Name
			if strings.Contains(list.GroupVersion, "/") {
				name += "." + group
			}
			all = append(all, name+"\t"+list.GroupVersion+" "+resource.Kind)
		}
	}
	return all
}

// names returns the names of objects of a kind, in the namespace if the kind has one.
func (t *target) names(ctx context.Context, kind string) (all []string) {
	mapping, err := t.resource(kind)
	if err != nil {
		return nil
	}
	path := []string{"/apis", mapping.Resource.Group, mapping.Resource.Version}
	if mapping.Resource.Group == "" {
		path = []string{"/api", mapping.Resource.Version}
	}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		path = append(path, "namespaces", t.namespace)
	}
	text, err := t.client.Get().AbsPath(append(path, mapping.Resource.Resource)...).
		SetHeader("Accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io").
		VersionedParams(&metav1.ListOptions{Limit: completeNames}, metav1.ParameterCodec).DoRaw(ctx)
	var list metav1.PartialObjectMetadataList
	if err != nil || json.Unmarshal(text, &list) != nil {
		return nil
	}
	for _, item := range list.Items {
		all = append(all, item.Name)
	}
	return all
}

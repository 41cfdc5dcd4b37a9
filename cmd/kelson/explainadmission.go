package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/why"
)

// maxDocuments is the largest number of objects of one command.
const maxDocuments = 100

// explainFlags are the flags of 'kelson explain-admission'.
type explainFlags struct {
	ask
	files          []string
	update, remove bool
}

func newExplainAdmission(s streams) *cobra.Command {
	var flags explainFlags
	cmd := &cobra.Command{
		Use:   "explain-admission -f FILE",
		Short: "Show what admission does to an object, and who refuses it",
		Long: `Send objects through admission as a dry run, and show what each plugin, webhook and
policy has changed, how long it took, and who refuses the write: by which expression, with
the values that it had. Nothing is stored. Webhooks are called, as for every dry run.

FILE has one or more objects in YAML or JSON; - is the standard input.

You need the permissions of the write itself, to post to ` + why.AdmissionPath + `, and to
get the object for --update and --delete. Webhooks and policies that you may not read are not named.

The exit code is 0 if all objects are admitted, 1 if one is refused, 2 if the command line
is not valid, and 3 if there is no answer.`,
		Example: `  kelson explain-admission -f pod.yaml
  kelson explain-admission -f deployment.yaml --update -o yaml
  kelson explain-admission -f deployment.yaml --delete
  kubectl get pod web-0 -o yaml | kelson explain-admission --update -f - --as jane`,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := noArgs(cmd, args); err != nil {
				return err
			}
			if len(flags.files) == 0 {
				return usage(cmd, "give a file with -f")
			}
			if flags.update && flags.remove {
				return usage(cmd, "--update and --delete are two writes; give one of them")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			refused, err := flags.run(cmd.Context(), s)
			if err != nil {
				return noAnswer(s, err)
			}
			if refused {
				return exitDenied
			}
			return nil
		},
	}
	flags.bind(cmd.Flags())
	cmd.Flags().StringSliceVarP(&flags.files, "filename", "f", nil, "`file` with objects; may be repeated")
	cmd.Flags().BoolVar(&flags.update, "update", false, "explain an update of the object instead of its creation")
	cmd.Flags().BoolVar(&flags.remove, "delete", false, "explain the deletion of the object, of which only kind and name count")
	return cmd
}

// explained is an object with what admission does to it.
type explained struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	why.Admission
}

// run explains all objects, and reports whether one is refused.
func (f *explainFlags) run(ctx context.Context, s streams) (refused bool, err error) {
	var objects []*unstructured.Unstructured
	for _, file := range f.files {
		more, err := readObjects(file, s.in, maxDocuments-len(objects))
		if err != nil {
			return false, err
		}
		objects = append(objects, more...)
	}
	if len(objects) == 0 {
		return false, fmt.Errorf("there is no object in %s", strings.Join(f.files, ", "))
	}
	t, err := f.connect()
	if err != nil {
		return false, err
	}
	var answers []explained
	for _, object := range objects {
		answer, err := f.explain(ctx, t, object)
		if err != nil {
			return false, fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
		}
		refused = refused || !answer.Allowed
		answers = append(answers, *answer)
	}
	return refused, f.print(s.out, answers, func(w io.Writer) error {
		for i := range answers {
			if i > 0 {
				fmt.Fprintln(w)
			}
			writeAdmission(w, &answers[i])
		}
		return nil
	})
}

// explain sends one object.
func (f *explainFlags) explain(ctx context.Context, t *target, object *unstructured.Unstructured) (*explained, error) {
	kind := object.GroupVersionKind()
	if kind.Kind == "" || kind.Version == "" {
		return nil, errors.New("it has no apiVersion or no kind")
	}
	mapping, err := t.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, err
	}
	path := []string{"", "api", kind.Version}
	if kind.Group != "" {
		path = []string{"", "apis", kind.Group, kind.Version}
	}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		if object.GetNamespace() == "" {
			object.SetNamespace(t.namespace)
		}
		path = append(path, "namespaces", object.GetNamespace())
	}
	path = append(path, mapping.Resource.Resource)
	method := http.MethodPost
	if f.update || f.remove {
		if object.GetName() == "" {
			return nil, errors.New("an update or a deletion needs a name")
		}
		method, path = http.MethodPut, append(path, object.GetName())
		if f.remove {
			method = http.MethodDelete
		}
	}
	answer := &explained{Kind: kind.Kind, Namespace: object.GetNamespace(), Name: object.GetName()}
	if answer.Name == "" {
		answer.Name = object.GetGenerateName()
	}
	query := url.Values{"path": {strings.Join(path, "/")}, "method": {method}}
	return answer, t.do(ctx, http.MethodPost, page(why.AdmissionPath), query, object, &answer.Admission)
}

// readObjects reads the objects of a file, at most as many.
func readObjects(file string, stdin io.Reader, most int) (objects []*unstructured.Unstructured, err error) {
	var text []byte
	if file == "-" {
		text, err = io.ReadAll(stdin)
	} else {
		text, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, err
	}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		object := &unstructured.Unstructured{}
		switch err := decoder.Decode(&object.Object); {
		case errors.Is(err, io.EOF):
			return objects, nil
		case err != nil:
			return nil, fmt.Errorf("%s: %w", file, err)
		case len(object.Object) == 0:
			continue
		case len(objects) == most:
			return nil, fmt.Errorf("there are more than %d objects", maxDocuments)
		}
		objects = append(objects, object)
	}
}

func writeAdmission(w io.Writer, a *explained) {
	name := a.Name
	if a.Namespace != "" {
		name = a.Namespace + "/" + name
	}
	switch {
	case a.Allowed:
		fmt.Fprintf(w, "%s is admitted.\n", clean(a.Kind+" "+name))
	case a.RefusedBy != "":
		fmt.Fprintf(w, "%s is refused by %s: %s\n", clean(a.Kind+" "+name), clean(a.RefusedBy), clean(a.Message))
	default:
		fmt.Fprintf(w, "%s is refused: %s\n", clean(a.Kind+" "+name), clean(a.Message))
	}
	for _, warning := range a.Warnings {
		fmt.Fprintf(w, "Warning: %s\n", clean(warning))
	}
	if len(a.Steps) > 0 {
		fmt.Fprint(w, "\nPHASE\tSTEP\tTOOK\tRESULT\n")
	}
	for _, s := range a.Steps {
		result := ""
		switch {
		case s.Error != "":
			result = "refused"
		case len(s.Changes) > 0:
			result = "changed"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", s.Phase, clean(s.Plugin), took(s.Microseconds), result)
		for _, p := range s.Parts {
			name := "one that you may not read"
			if p.Config != "" {
				name = strings.TrimSuffix(p.Config+"/"+p.Name, "/")
			}
			if p.Binding != "" {
				name += " by " + p.Binding
			}
			result := p.Answer
			if len(p.Changes) > 0 && p.Answer == admission.PartAdmitted {
				result = "changed"
			}
			fmt.Fprintf(w, "\t  %s\t%s\t%s\n", clean(name), took(p.Microseconds), result)
		}
	}
	writeChanges(w, a)
	for _, s := range a.Steps {
		for _, p := range s.Parts {
			if p.Message == "" && len(p.Values) == 0 {
				continue
			}
			fmt.Fprintf(w, "\n%s %s: %s\n", clean(p.Config), p.Answer, clean(p.Message))
			if p.Expression != "" {
				fmt.Fprintf(w, "  expression: %s\n", clean(p.Expression))
			}
			for _, v := range p.Values {
				fmt.Fprintf(w, "  %s = %s\n", clean(v.Expression), clean(v.Value))
			}
		}
	}
	if a.Hidden {
		fmt.Fprint(w, "\nThere are webhooks or policies that you may not read.\n")
	}
}

// writeChanges writes what each step has changed.
func writeChanges(w io.Writer, a *explained) {
	first := true
	write := func(by string, changes []admission.Change) {
		for _, c := range changes {
			if first {
				fmt.Fprint(w, "\nCHANGED BY\tFIELD\tBEFORE\tAFTER\n")
				first = false
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", clean(by), clean(c.Field), clean(c.Before), clean(c.After))
		}
	}
	for _, s := range a.Steps {
		for _, p := range s.Parts {
			by := p.Config
			if by == "" {
				by = "one that you may not read"
			}
			write(by, p.Changes)
		}
		write(s.Plugin, s.Changes)
	}
}

func took(microseconds int64) string {
	return (time.Duration(microseconds) * time.Microsecond).String()
}

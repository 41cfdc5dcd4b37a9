package main

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/why"
)

// exitDenied is the exit code of 'kelson why' if the request is not allowed.
const exitDenied = exitCode(1)

// exitFailed is its exit code if there is no answer, so that scripts can tell the two
// apart.
const exitFailed = exitCode(3)

// self is the USER who stands for the one who asks.
const self = "@me"

// whyFlags are the flags of 'kelson why' and 'kelson who-can'.
type whyFlags struct {
	ask
	groups         []string
	exactGroups    bool
	everywhere     bool
	fields, labels string
	last           bool
}

func newWhy(s streams) *cobra.Command {
	var flags whyFlags
	cmd := &cobra.Command{
		Use:   "why USER VERB RESOURCE [NAME] | --last USER",
		Short: "Say why a request is allowed or denied, and what would allow it",
		Long: `Say which rule of which role allows a user a request, by which binding; or what each
authorizer answered, which bindings come closest and what they lack, and the smallest
role that would do.

USER is the name of a user, or @me. Users are taken to be in the groups that the server
puts them in by their name (system:authenticated and, by the sort of user, the groups of
service accounts or nodes), and in those of --user-group. RESOURCE is pods, po,
deployments.apps, pods/log, or a path that begins with a slash.

With --last it shows the last requests of the user that this server has denied.

You need the permission to get ` + why.Path + ` (` + why.DenialsPath + ` with --last) and, to
ask about others, to create subjectaccessreviews.authorization.k8s.io. Roles, bindings
and pods that you may not read are not named.

The exit code is 0 if the request is allowed, 1 if it is not, 2 if the command line is
not valid, and 3 if there is no answer. With --last it is 0 or 3.`,
		Example: `  kelson why jane delete pods web-0 -n shop
  kelson why system:serviceaccount:shop:web get secrets -n shop
  kelson why jane list pods --user-group devs --field-selector spec.nodeName=n1 -A
  kelson why @me get /metrics
  kelson why system:node:n1 get secrets db -n shop     # what connects node and secret
  kelson why --last jane -o yaml`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case flags.last && len(args) != 1:
				return usage(cmd, "--last needs one USER")
			case !flags.last && (len(args) < 3 || len(args) > 4):
				return usage(cmd, "give USER, VERB, RESOURCE and at most one NAME")
			case len(args) == 4 && strings.HasPrefix(args[2], "/"):
				return usage(cmd, "a path has no NAME")
			case args[0] == "":
				return usage(cmd, "USER is empty")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if flags.last {
				return noAnswer(s, flags.lastDenials(cmd.Context(), s, args[0]))
			}
			answer, err := flags.why(cmd.Context(), s, args)
			if err != nil {
				return noAnswer(s, err)
			}
			if err := flags.print(s.out, answer, func(w io.Writer) error { return writeAnswer(w, answer) }); err != nil {
				return noAnswer(s, err)
			}
			if !answer.Allowed {
				return exitDenied
			}
			return nil
		},
	}
	flags.bind(cmd.Flags())
	cmd.Flags().StringSliceVar(&flags.groups, "user-group", nil, "`group` of USER; may be repeated")
	cmd.Flags().BoolVar(&flags.exactGroups, "exact-groups", false, "USER is in no groups but those of --user-group")
	cmd.Flags().BoolVar(&flags.last, "last", false, "show the last requests of USER that were denied")
	return cmd
}

func newWhoCan(s streams) *cobra.Command {
	var flags whyFlags
	cmd := &cobra.Command{
		Use:   "who-can VERB RESOURCE [NAME]",
		Short: "List the users, groups and service accounts that may make a request",
		Long: `List the users, groups and service accounts that may make a request, with the binding
that allows it. RESOURCE is pods, po, deployments.apps, pods/log, or a path that begins
with a slash. An authorizer that cannot list its subjects, such as a webhook, is named.

You need the permission to get ` + why.WhoCanPath + `, and to create
subjectaccessreviews.authorization.k8s.io. Bindings that you may not read are left out.

The exit code is 0, also if nobody may, 2 if the command line is not valid, and 3 if
there is no answer.`,
		Example: `  kelson who-can delete pods -n shop
  kelson who-can get secrets db -n shop -o json
  kelson who-can create pods/exec -A
  kelson who-can get /metrics`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) < 2 || len(args) > 3:
				return usage(cmd, "give VERB, RESOURCE and at most one NAME")
			case len(args) == 3 && strings.HasPrefix(args[1], "/"):
				return usage(cmd, "a path has no NAME")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return noAnswer(s, flags.whoCan(cmd.Context(), s, args))
		},
	}
	flags.bind(cmd.Flags())
	return cmd
}

// bind adds the flags that both commands have.
func (f *whyFlags) bind(fs *pflag.FlagSet) {
	f.ask.bind(fs)
	fs.BoolVarP(&f.everywhere, "all-namespaces", "A", false, "ask about all namespaces at once")
	fs.StringVar(&f.fields, "field-selector", "", "`selector` of a list or watch")
	fs.StringVarP(&f.labels, "selector", "l", "", "`selector` by labels of a list or watch")
}

// noAnswer prints an error and turns it into exitFailed. A usageError stays what it is.
func noAnswer(s streams, err error) error {
	if err == nil {
		return nil
	}
	if _, wrong := err.(usageError); wrong {
		return err
	}
	fmt.Fprintf(s.err, "kelson: %s\n", clean(explain(err)))
	return exitFailed
}

// why asks about a request.
func (f *whyFlags) why(ctx context.Context, s streams, args []string) (*why.Answer, error) {
	t, err := f.connect()
	if err != nil {
		return nil, err
	}
	query, err := f.query(t, s, args[1:])
	if err != nil {
		return nil, err
	}
	if args[0] != self {
		query.Set("user", args[0])
		query["groups"] = f.groupsOf(args[0])
	} else if len(f.groups) > 0 {
		return nil, usageError{fmt.Errorf("--user-group is for others than %s, whose groups the server knows", self)}
	}
	answer := &why.Answer{}
	return answer, t.get(ctx, page(why.Path), query, answer)
}

// page returns the path of a page below debugRoot.
func page(path string) string { return strings.TrimPrefix(path, debugRoot) }

// groupsOf returns the groups of --user-group, and those that the server puts a user in by
// the name.
func (f *whyFlags) groupsOf(user string) []string {
	groups := slices.Clone(f.groups)
	if f.exactGroups {
		return groups
	}
	if user == authz.Anonymous {
		return append(groups, authz.Unauthenticated)
	}
	if strings.HasPrefix(user, authz.NodePrefix) {
		groups = append(groups, authz.Nodes)
	}
	if account, ok := strings.CutPrefix(user, authz.ServiceAccountPrefix); ok {
		namespace, _, _ := strings.Cut(account, ":")
		groups = append(groups, "system:serviceaccounts", "system:serviceaccounts:"+namespace)
	}
	return append(groups, authz.Authenticated)
}

// query returns the parameters for VERB, RESOURCE and NAME. A resource that the server does
// not have is asked about as it is written: a rule may name anything.
func (f *whyFlags) query(t *target, s streams, args []string) (url.Values, error) {
	query := url.Values{"verb": {args[0]}}
	set := func(name, value string) {
		if value != "" {
			query.Set(name, value)
		}
	}
	set("fieldSelector", f.fields)
	set("labelSelector", f.labels)
	word := args[1]
	if strings.HasPrefix(word, "/") {
		set("path", word)
		return query, nil
	}
	word, subresource, _ := strings.Cut(word, "/")
	set("subresource", subresource)
	if len(args) > 2 {
		set("name", args[2])
	}
	namespace := t.namespace
	if f.everywhere {
		namespace = ""
	}
	mapping, err := t.resource(word)
	if err != nil || word == "*" {
		gr := schema.ParseGroupResource(word)
		set("resource", gr.Resource)
		set("group", gr.Group)
		set("namespace", namespace)
		if word != "*" {
			fmt.Fprintf(s.err, "kelson: %s; asking about %q all the same\n", clean(err.Error()), gr.String())
		}
		return query, nil
	}
	set("resource", mapping.Resource.Resource)
	set("group", mapping.Resource.Group)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		set("namespace", namespace)
	} else if f.namespace != "" && word == "namespaces" {
		set("name", f.namespace)
	}
	return query, nil
}

func (f *whyFlags) whoCan(ctx context.Context, s streams, args []string) error {
	t, err := f.connect()
	if err != nil {
		return err
	}
	query, err := f.query(t, s, args)
	if err != nil {
		return err
	}
	var answer why.Subjects
	if err := t.get(ctx, page(why.WhoCanPath), query, &answer); err != nil {
		return err
	}
	return f.print(s.out, &answer, func(w io.Writer) error { return writeSubjects(w, &answer) })
}

func (f *whyFlags) lastDenials(ctx context.Context, s streams, user string) error {
	t, err := f.connect()
	if err != nil {
		return err
	}
	query := url.Values{}
	if user != self {
		query.Set("user", user)
	}
	var answer why.LastDenials
	if err := t.get(ctx, page(why.DenialsPath), query, &answer); err != nil {
		return err
	}
	return f.print(s.out, &answer, func(w io.Writer) error { return writeDenials(w, &answer) })
}

// describeQuestion returns a request in words.
func describeQuestion(q *why.Question) string {
	if q.Path != "" {
		return clean(q.Verb) + " " + clean(q.Path)
	}
	what := q.Resource
	if q.Group != "" {
		what += "." + q.Group
	}
	if q.Subresource != "" {
		what += "/" + q.Subresource
	}
	text := q.Verb + " " + what
	if q.Name != "" {
		text += " " + q.Name
	}
	switch {
	case q.FieldSelector != "" && q.LabelSelector != "":
		text += " with " + q.FieldSelector + " and " + q.LabelSelector
	case q.FieldSelector+q.LabelSelector != "":
		text += " with " + q.FieldSelector + q.LabelSelector
	}
	if q.Namespace != "" {
		return clean(text + " in namespace " + q.Namespace)
	}
	return clean(text + " in the whole cluster")
}

func writeAnswer(w io.Writer, a *why.Answer) error {
	user := clean(a.Question.User)
	if user == "" {
		user = "somebody in " + clean(strings.Join(a.Question.Groups, ", "))
	}
	if a.Allowed {
		fmt.Fprintf(w, "Yes: %s can %s.\n", user, describeQuestion(&a.Question))
	} else {
		fmt.Fprintf(w, "No: %s cannot %s.\n", user, describeQuestion(&a.Question))
	}
	fmt.Fprint(w, "\nAUTHORIZER\tANSWER\tREASON\n")
	for _, o := range a.Authorizers {
		reasons := append([]string{}, o.Notes...)
		for _, text := range []string{o.Error, o.Reason} {
			if text != "" {
				reasons = append([]string{text}, reasons...)
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", clean(o.Name), o.Answer, clean(strings.Join(reasons, "; ")))
	}
	for _, o := range a.Authorizers {
		writeGrants(w, "ALLOWED BY", "RULE", o.Grants, func(g *authz.Grant) string { return describeRule(g) })
		writeGrants(w, "CLOSEST", "LACKS", o.Near, func(g *authz.Grant) string { return strings.Join(g.Lacks, ", ") })
		writeGrants(w, "WITHOUT A ROLE", "LACKS", o.Dangling, func(*authz.Grant) string { return "the role does not exist" })
		for i, p := range o.Paths {
			if i == 0 {
				fmt.Fprint(w, "\nPATH IN THE GRAPH OF NODES\n")
			}
			text := "node " + p.Node
			for _, object := range p.Objects {
				text += " > " + describeObject(&object)
			}
			fmt.Fprintf(w, "%s\n", clean(text))
		}
		if o.Missing != "" {
			fmt.Fprintf(w, "\nMissing: %s.\n", clean(o.Missing))
		}
	}
	if a.Hidden {
		fmt.Fprint(w, "\nThere is more to it, which you may not see: roles, bindings or other objects that you may not read.\n")
	}
	if s := a.Suggestion; s != nil {
		if s.YAML != "" {
			// Tabs would end cells, and YAML has none outside of quotes.
			fmt.Fprintf(w, "\nThis would allow exactly that:\n\n%s", s.YAML)
		}
		if s.Policy != "" {
			fmt.Fprintf(w, "\nThis line in the file of ABAC policies would allow it:\n\n%s\n", clean(s.Policy))
		}
		if s.Note != "" {
			fmt.Fprintf(w, "\nNote: %s.\n", clean(s.Note))
		}
	}
	return nil
}

func writeGrants(w io.Writer, title, last string, grants []authz.Grant, cell func(*authz.Grant) string) {
	for i := range grants {
		if i == 0 {
			fmt.Fprintf(w, "\n%s\tROLE\tSUBJECT\t%s\n", title, last)
		}
		g := &grants[i]
		binding, role := "a policy", ""
		if g.Binding != nil {
			binding, role = describeObject(g.Binding), describeObject(g.Role)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", clean(binding), clean(role), clean(describeSubject(g.Subject)), clean(cell(g)))
	}
}

// describeRule returns the rule or the policy of a grant.
func describeRule(g *authz.Grant) string {
	if g.Rule == nil {
		return g.Policy
	}
	r := g.Rule
	if len(r.NonResourceURLs) > 0 {
		return strings.Join(r.Verbs, ",") + " " + strings.Join(r.NonResourceURLs, ",")
	}
	text := strings.Join(r.Verbs, ",") + " " + strings.Join(r.Resources, ",")
	if slices.ContainsFunc(r.APIGroups, func(g string) bool { return g != "" }) {
		text += fmt.Sprintf(" of %q", r.APIGroups)
	}
	if len(r.ResourceNames) > 0 {
		text += " named " + strings.Join(r.ResourceNames, ",")
	}
	return text
}

func describeObject(o *authz.Object) string {
	if o.Namespace != "" {
		return o.Kind + " " + o.Namespace + "/" + o.Name
	}
	return o.Kind + " " + o.Name
}

func describeSubject(s *authz.Subject) string {
	switch {
	case s == nil:
		return ""
	case s.Namespace != "":
		return s.Kind + " " + s.Namespace + "/" + s.Name
	}
	return s.Kind + " " + s.Name
}

func writeSubjects(w io.Writer, a *why.Subjects) error {
	if len(a.Subjects) == 0 {
		fmt.Fprintf(w, "Nobody whom you may see can %s.\n", describeQuestion(&a.Question))
	} else {
		fmt.Fprint(w, "SUBJECT\tBY\tROLE\tAUTHORIZER\n")
	}
	for i := range a.Subjects {
		g := &a.Subjects[i].Grant
		by, role := g.Policy, ""
		if g.Binding != nil {
			by, role = describeObject(g.Binding), describeObject(g.Role)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", clean(describeSubject(g.Subject)), clean(by), clean(role), clean(a.Subjects[i].Authorizer))
	}
	for _, text := range a.Unknown {
		fmt.Fprintf(w, "\nNot known: %s.\n", clean(text))
	}
	if a.Truncated {
		fmt.Fprint(w, "\nThere are more, which are not shown.\n")
	}
	if a.Hidden {
		fmt.Fprint(w, "\nThere are others, by bindings or roles that you may not read.\n")
	}
	return nil
}

func writeDenials(w io.Writer, a *why.LastDenials) error {
	if len(a.Denials) == 0 {
		_, err := fmt.Fprintf(w, "This server has denied %s nothing lately.\n", clean(a.User))
		return err
	}
	fmt.Fprintf(w, "Requests of %s that this server has denied:\n\nLAST TIME\tTIMES\tREQUEST\tNOW\n", clean(a.User))
	for i := range a.Denials {
		d := &a.Denials[i]
		now := "too long to be kept whole"
		switch {
		case d.Now != nil && d.Now.Allowed:
			now = "allowed"
		case d.Now != nil:
			now = "denied" + closest(d.Now)
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\n", d.Time.Format("2006-01-02 15:04:05Z"), d.Count, describeQuestion(&d.Question), clean(now))
	}
	_, err := fmt.Fprint(w, "\n'kelson why USER VERB RESOURCE' or '-o yaml' shows what would allow one.\n")
	return err
}

// closest returns in a few words what the closest grant of an answer lacks.
func closest(a *why.Answer) string {
	for _, o := range a.Authorizers {
		if o.Missing != "" {
			return ": missing is " + o.Missing
		}
		if len(o.Near) > 0 && o.Near[0].Binding != nil {
			return fmt.Sprintf(": %s lacks %s", describeObject(o.Near[0].Binding), strings.Join(o.Near[0].Lacks, ", "))
		}
	}
	return ""
}

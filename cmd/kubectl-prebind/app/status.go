// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/cmd/internal/cli"
	"github.com/prebind/prebind/internal/replica"
	"github.com/prebind/prebind/internal/work"
)

// silentAfter is the age of a report after which the replica's state is unknown.
const silentAfter = 30 * time.Second

// statusOptions are the flags of status.
type statusOptions struct {
	client cli.Client
	output format
	own    string
	// namespace and pod select binds. Empty values select all.
	namespace, pod string
	clock          clock.PassiveClock
}

func newStatusOptions() *statusOptions { return &statusOptions{clock: clock.RealClock{}} }

// addFlags adds the flags that status and top share.
func (o *statusOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVarP(&o.namespace, "namespace", "n", "", "Show only binds of pods in this namespace.")
	addOwnFlag(fs, &o.own)
	o.client.AddFlags(fs)
}

// addOwnFlag adds the flag for Prebind's own namespace.
func addOwnFlag(fs *pflag.FlagSet, own *string) {
	fs.StringVar(own, "prebind-namespace", "prebind-system", "Namespace where Prebind runs.")
}

func newStatusCommand() *cobra.Command {
	o := newStatusOptions()
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the replicas, the binds in progress and the next steps",
		Long: `Show the replicas, and the binds in progress: which pod waits for what, and for
how long. NEXT lists what you should do.

Each replica reports its state on a Lease every ten seconds. You need permission
to list leases in Prebind's namespace. The command also posts a dry-run Binding of a
pod that does not exist, in the namespace default, if you may create pods/binding
there. If the API server cannot call Prebind for it, or does not answer in ten
seconds, NEXT begins with the error. For all lines of NEXT, you also need permission
to get the Deployment prebind in Prebind's namespace, and to list
mutatingwebhookconfigurations, validatingadmissionpolicybindings, bindpolicies and
bindtasks.

Exit codes: 0, or 1 if the API server cannot call Prebind or does not answer in time,
or if the leases cannot be read.`,
		Example: `  kubectl prebind status
  kubectl prebind status -n shop --pod web-0`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	fs := cmd.Flags()
	o.addFlags(fs)
	fs.StringVar(&o.pod, "pod", "", "Show only binds of the pod with this name.")
	o.output.addFlag(fs)
	return cmd
}

func (o *statusOptions) run(ctx context.Context, out io.Writer) error {
	if err := o.output.validate(); err != nil {
		return err
	}
	client, err := o.client.Connect()
	if err != nil {
		return err
	}
	all, err := o.read(ctx, client)
	if err != nil {
		return err
	}
	reached := probe(ctx, client.Config)
	if err := ctx.Err(); err != nil {
		return err
	}
	err = o.output.write(out, withHealth(all, o.clock.Now()), func(out *bytes.Buffer) {
		o.text(out, all)
		if found := findings(ctx, client, o.own, all, reached, o.clock.Now()); len(found) > 0 {
			fmt.Fprintf(out, "\nNEXT\n- %s\n", strings.Join(found, "\n- "))
		}
	})
	if err == nil && reached.failure != "" {
		err = errors.New(reached.failure)
		if o.output == formatText { // NEXT says it.
			err = cli.ExitError{Code: 1}
		}
	}
	return err
}

// healthStatus is a Status with the value of the column READY.
type healthStatus struct {
	replica.Status
	Ready string `json:"ready"`
}

func withHealth(all []replica.Status, now time.Time) []healthStatus {
	out := make([]healthStatus, 0, len(all))
	for _, s := range all {
		out = append(out, healthStatus{Status: s, Ready: health(s, now)})
	}
	return out
}

// read returns the status of all replicas with the binds that the flags select.
func (o *statusOptions) read(ctx context.Context, client kubernetes.Interface) ([]replica.Status, error) {
	all, err := replica.Statuses(ctx, client, o.own)
	o.filter(all)
	return all, err
}

// filter removes binds that the flags do not select.
func (o *statusOptions) filter(all []replica.Status) {
	for i := range all {
		all[i].InFlight = slices.DeleteFunc(all[i].InFlight, func(f work.InFlight) bool {
			return o.namespace != "" && f.Namespace != o.namespace || o.pod != "" && f.Pod != o.pod
		})
	}
}

// text writes the replicas and their binds.
func (o *statusOptions) text(out *bytes.Buffer, all []replica.Status) {
	if len(all) == 0 {
		fmt.Fprintf(out, "No replica of Prebind has a lease in namespace %s.\n", o.own)
		return
	}
	now := o.clock.Now()
	writeTable(out, "REPLICA\tLEADER\tPOD\tVERSION\tMODE\tCONFIG\tPREPARING\tPREPARED\tHOLDS\tREPORTED\tREADY", func(w io.Writer) {
		for _, s := range all {
			leader := "no"
			if s.Leader {
				leader = "yes"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d/%d\t%s ago\t%s\n", s.Replica, leader, orDash(s.Pod), orDash(s.Version), orDash(s.Mode),
				orDash(s.Config), s.Attempts["preparing"], s.Attempts["prepared"], s.Holds, s.MaxHolds, age(now, s.Reported.Time), health(s, now))
		}
	})
	textBinds(out, all, now)
}

// bind is a bind in progress.
type bind struct {
	work.InFlight
	replica string
}

// bindsOf returns the binds of all replicas, the oldest first.
func bindsOf(all []replica.Status) []bind {
	var binds []bind
	for _, s := range all {
		for _, f := range s.InFlight {
			binds = append(binds, bind{InFlight: f, replica: s.Replica})
		}
	}
	slices.SortStableFunc(binds, func(a, b bind) int { return a.Since.Compare(b.Since.Time) })
	return binds
}

// textBinds writes the binds of all replicas.
func textBinds(out *bytes.Buffer, all []replica.Status, now time.Time) {
	fmt.Fprintln(out)
	if binds := bindsOf(all); len(binds) == 0 {
		fmt.Fprintln(out, "No binds in progress.")
	} else {
		writeTable(out, "NAMESPACE\tPOD\tNODE\tREPLICA\tPHASE\tAGE\tTIMEOUT\tPLUGIN\tWAITING FOR", func(w io.Writer) {
			for _, b := range binds {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", b.Namespace, b.Pod, b.Node, b.replica, b.Phase, age(now, b.Since.Time),
					budget(b.Budget.Duration), orDash(b.Plugin), orDash(b.WaitsFor))
			}
		})
	}
	textLeftOut(out, all)
}

// textLeftOut writes how many binds the replicas do not report, if any.
func textLeftOut(out io.Writer, all []replica.Status) {
	leftOut := 0
	for _, s := range all {
		leftOut += s.LeftOut
	}
	if leftOut > 0 {
		fmt.Fprintf(out, "\n%d more binds are not reported: a replica reports at most %d KiB.\n", leftOut, replica.MaxStatus>>10)
	}
}

// healthy begins the value of the column READY if the replica is ready.
const healthy = "yes"

// health returns the value of the column READY.
func health(s replica.Status, now time.Time) string {
	if silent := now.Sub(s.Reported.Time); silent > silentAfter {
		return "unknown: no report for " + duration.HumanDuration(silent) + ", by the clock of this computer"
	}
	text := healthy
	if s.Problem != "" {
		text = "no: " + s.Problem
	}
	switch ahead := s.ClockAhead.Duration; {
	case ahead > 0:
		text += "; its clock is " + duration.HumanDuration(ahead) + " ahead"
	case ahead < 0:
		text += "; its clock is " + duration.HumanDuration(-ahead) + " behind"
	}
	return text
}

func age(now, then time.Time) string { return duration.HumanDuration(max(now.Sub(then), 0)) }

// budget returns the value of the column TIMEOUT.
func budget(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return duration.HumanDuration(d)
}

func orDash(text string) string { return cmp.Or(text, "-") }

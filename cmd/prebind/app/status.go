// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/attempt"
	"github.com/prebind/prebind/binder/fair"
	"github.com/prebind/prebind/binder/replica"
)

const (
	// statusBytes bounds the encoded status. All annotations of a Lease together may have
	// 262,144 bytes, and a renewal with more is rejected.
	statusBytes = 64 << 10
	// statusText bounds each text in the status that has no limit of its own, in bytes.
	statusText = 512
	// lookAtStatusEvery is the pause of --watch. A replica tells of itself every ten
	// seconds.
	lookAtStatusEvery = 2 * time.Second
	// silentAfter is when a replica that tells nothing any more is not to be relied on.
	silentAfter = 30 * time.Second
	// clocksDiffer is by how much a replica's clock is wrong before that is told: a
	// write takes its time, and the API server notes full seconds.
	clocksDiffer = 5 * time.Second
)

// replicaStatus is what a replica tells of itself. Its JSON is stable.
type replicaStatus struct {
	// Replica is its ID, with which its attempts begin.
	Replica string `json:"replica"`
	// Pod is empty where --pod-name is not given.
	Pod     string `json:"pod,omitempty"`
	Version string `json:"version"`
	// Config is the hash of the configuration in force.
	Config string `json:"config"`
	Mode   string `json:"mode"`
	// Problem is why it is not ready; empty if it is.
	Problem string `json:"problem,omitempty"`
	// Attempts are how many are under way, by phase.
	Attempts map[string]int `json:"attempts"`
	Holds    int            `json:"holds"`
	MaxHolds int            `json:"maxHolds"`
	// InFlight are the attempts, the oldest first. Where there is no room for all,
	// namespaces take turns, and LeftOut is how many are not in here.
	InFlight []attempt.InFlight `json:"inFlight,omitempty"`
	LeftOut  int                `json:"leftOut,omitempty"`
	// Told is when it told this.
	Told metav1.Time `json:"told"`
	// ClockAhead is by how much its clock is ahead of the API server's, negative if it is
	// behind; left out where they agree. The times in here are put right by it.
	ClockAhead metav1.Duration `json:"clockAhead,omitzero"`
}

// statusOf returns a function that tells of this process.
func statusOf(engine *binder.Engine, o *serveOptions, ready *readiness, id string, inForce func() *configuration) func() (string, error) {
	return func() (string, error) {
		stats, c := engine.Stats(), inForce()
		s := replicaStatus{
			Replica: id, Pod: o.podName, Version: version, Config: c.hash, Mode: string(c.Mode),
			Attempts: stats.Attempts, Holds: stats.Holds, MaxHolds: stats.MaxHolds,
		}
		if err := ready.probe(); err != nil {
			s.Problem = cut(err.Error())
		}
		return s.encode(engine.InFlight())
	}
}

// encode returns the JSON of the status with as many of the attempts, given oldest
// first, as fit into statusBytes.
func (s replicaStatus) encode(all []attempt.InFlight) (string, error) {
	s.LeftOut = len(all) // The longest number that there may be.
	rest, err := json.Marshal(s)
	if err != nil {
		return "", err
	}
	room := statusBytes - len(rest) - len(`,"inFlight":[]`)
	for _, f := range fair.Interleave(all, func(f attempt.InFlight) string { return f.Namespace }) {
		f.WaitsFor = cut(f.WaitsFor)
		encoded, err := json.Marshal(f)
		if err != nil {
			return "", err
		}
		if room -= len(encoded) + len(","); room < 0 {
			break
		}
		s.InFlight = append(s.InFlight, f)
	}
	s.LeftOut -= len(s.InFlight)
	slices.SortStableFunc(s.InFlight, func(a, b attempt.InFlight) int { return a.Since.Compare(b.Since.Time) })
	encoded, err := json.Marshal(s)
	return string(encoded), err
}

// cut shortens a text to statusText.
func cut(text string) string {
	const more = "…"
	if len(text) <= statusText {
		return text
	}
	return strings.ToValidUTF8(text[:statusText-len(more)], "") + more
}

// statusOptions are the flags of prebind status.
type statusOptions struct {
	user   userClient
	output format
	watch  bool
	clock  clock.Clock
}

func newStatusCommand() *cobra.Command {
	o := &statusOptions{clock: clock.RealClock{}}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the replicas, and the binds that they are at: who waits for what, and for how long",
		Long: `Show the replicas, and the binds that they are at: who waits for what, and for how long.

Each replica tells of itself every ten seconds, on its Lease. You need the permission
to list leases in Prebind's namespace.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), cmd.OutOrStdout()) },
	}
	fs := cmd.Flags()
	fs.BoolVarP(&o.watch, "watch", "w", false, "Show it again whenever something has changed, until interrupted.")
	o.output.addFlag(fs)
	o.user.addFlags(fs)
	// Another default than kubectl's: it is about Prebind's own namespace.
	o.user.overrides.Context.Namespace = defaultNamespace
	fs.Lookup("namespace").DefValue = defaultNamespace
	return cmd
}

func (o *statusOptions) run(ctx context.Context, out io.Writer) error {
	config, namespace, err := o.user.config()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("the way to the API server: %w", err)
	}
	shown := ""
	for {
		all, err := readStatus(ctx, client, namespace)
		if err != nil {
			return err
		}
		if now := fmt.Sprint(all); now != shown {
			if shown != "" {
				fmt.Fprintln(out, "---")
			}
			shown = now
			if err := o.output.write(out, all, o.text(namespace, all)); err != nil {
				return err
			}
		}
		if !o.watch {
			return nil
		}
		timer := o.clock.NewTimer(lookAtStatusEvery)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
		}
	}
}

// readStatus returns what the replicas tell, by ID.
func readStatus(ctx context.Context, client kubernetes.Interface, namespace string) ([]replicaStatus, error) {
	reports, err := replica.Reports(ctx, client, namespace)
	if err != nil {
		return nil, err
	}
	all := make([]replicaStatus, 0, len(reports))
	for _, r := range reports {
		s := replicaStatus{Replica: r.ID}
		if err := json.Unmarshal([]byte(r.Status), &s); err != nil {
			s.Problem = "its lease does not say how it is: it may be of another version"
		}
		s.Told = metav1.NewTime(r.Renewed)
		if r.Ahead.Abs() >= clocksDiffer {
			s.ClockAhead.Duration = r.Ahead
			for i := range s.InFlight {
				s.InFlight[i].Since.Time = s.InFlight[i].Since.Add(-r.Ahead)
			}
		}
		all = append(all, s)
	}
	return all, nil
}

// text returns a function that writes the replicas, then their binds.
func (o *statusOptions) text(namespace string, all []replicaStatus) func(io.Writer) error {
	return func(out io.Writer) error {
		if len(all) == 0 {
			_, err := fmt.Fprintf(out, "No replica of Prebind has a lease in the namespace %s.\n", namespace)
			return err
		}
		now := o.clock.Now()
		w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
		fmt.Fprintln(w, "REPLICA\tPOD\tVERSION\tMODE\tCONFIG\tPREPARING\tPREPARED\tHOLDS\tTOLD\tREADY")
		for _, s := range all {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d/%d\t%s ago\t%s\n", s.Replica, orDash(s.Pod), orDash(s.Version), orDash(s.Mode), orDash(s.Config),
				s.Attempts["preparing"], s.Attempts["prepared"], s.Holds, s.MaxHolds, age(now, s.Told.Time), s.health(now))
		}
		if err := w.Flush(); err != nil {
			return err
		}
		return o.textBinds(out, all, now)
	}
}

// textBinds writes the binds of all replicas, the oldest first.
func (*statusOptions) textBinds(out io.Writer, all []replicaStatus, now time.Time) error {
	var binds []attempt.InFlight
	leftOut := 0
	for _, s := range all {
		binds = append(binds, s.InFlight...)
		leftOut += s.LeftOut
	}
	fmt.Fprintln(out)
	if len(binds) == 0 {
		_, err := fmt.Fprintln(out, "No bind is under way that a PreBind plugin has anything to do for.")
		return err
	}
	slices.SortStableFunc(binds, func(a, b attempt.InFlight) int { return a.Since.Compare(b.Since.Time) })
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "NAMESPACE\tPOD\tNODE\tREPLICA\tPHASE\tFOR\tOF\tPLUGIN\tWAITS FOR")
	for _, b := range binds {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", b.Namespace, b.Pod, b.Node, b.Replica(), b.Phase, age(now, b.Since.Time),
			duration.HumanDuration(b.Budget.Duration), orDash(b.Plugin), orDash(b.WaitsFor))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if leftOut > 0 {
		fmt.Fprintf(out, "\n%d more are not shown: each replica reports at most %d KiB.\n", leftOut, statusBytes>>10)
	}
	return nil
}

// health says in a word or a sentence whether the replica can be relied on.
func (s replicaStatus) health(now time.Time) string {
	switch {
	case now.Sub(s.Told.Time) > silentAfter:
		return "unknown: it has told nothing for a while"
	case s.Problem != "":
		return "no: " + s.Problem + s.clock("and")
	default:
		return "yes" + s.clock("but")
	}
}

// clock says that the clock is wrong, where it is.
func (s replicaStatus) clock(joined string) string {
	switch ahead := s.ClockAhead.Duration; {
	case ahead > 0:
		return ", " + joined + " its clock is " + duration.HumanDuration(ahead) + " ahead of the API server's"
	case ahead < 0:
		return ", " + joined + " its clock is " + duration.HumanDuration(-ahead) + " behind the API server's"
	default:
		return ""
	}
}

func age(now, then time.Time) string { return duration.HumanDuration(max(now.Sub(then), 0)) }

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

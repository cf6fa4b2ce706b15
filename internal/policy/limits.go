// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"math"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/functions"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/overloads"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/library"
)

// CEL counts the cost of a call after the call, and cannot interrupt it. So the work of each function whose time or result is not linear in its
// arguments is known before it runs, in bytes that cost a tenth of a unit each, as in CEL. A call that alone would cost more than an expression may
// is an error.
const (
	maxWork = 10 * expressionCostLimit
	tooMuch = maxWork + 1
	// maxList is the limit of the elements of a list. An expression cannot iterate over more.
	maxList = expressionCostLimit
)

// works return the work of a call. They need little time themselves, and do not allocate.
var works = map[string]func(args []ref.Val) int{
	operators.Add:       addWork,
	operators.Equals:    compareWork,
	operators.NotEquals: compareWork,
	operators.In:        func(args []ref.Val) int { return nestedSize(args[0]) * lengthOf(args[1]) },
	"getQuery":          func(args []ref.Val) int { return 8 * stringWork(args) },
	overloads.Matches:   searchWork,
	"find":              searchWork,
	"findAll":           searchWork,
	"indexOf":           searchWork,
	"lastIndexOf":       searchWork,
	"includes":          searchWork,
	"replace":           replaceWork,
	"join":              joinWork,
	"format":            formatWork,
	"strings.quote":     func(args []ref.Val) int { return 3 * textSize(args[0]) },
	"flatten":           func(args []ref.Val) int { return textSize(args[0]) },
	"isSorted":          func(args []ref.Val) int { return nestedSize(args[0]) },
	"sum":               func(args []ref.Val) int { return nestedSize(args[0]) },
	"min":               func(args []ref.Val) int { return nestedSize(args[0]) },
	"max":               func(args []ref.Val) int { return nestedSize(args[0]) },
	"distinct":          func(args []ref.Val) int { return pairsWork(args[0], args[0]) },
	"sets.contains":     func(args []ref.Val) int { return pairsWork(args[0], args[1]) },
	"sets.equivalent":   func(args []ref.Val) int { return pairsWork(args[0], args[1]) },
	"sets.intersects":   func(args []ref.Val) int { return pairsWork(args[0], args[1]) },
	"lists.range":       rangeWork,
	"quantity":          quantityWork,
	"isQuantity":        quantityWork,
}

// readers are functions that read a whole string once, without a cost in CEL. One call needs no limit.
var readers = sets.New(overloads.Size, "charAt", "bool", "int", "uint", "double", "duration", "timestamp", "getEscapedPath", "isURL")

// addWork limits lists, which need no time to be added. CEL counts the cost of strings.
func addWork(args []ref.Val) int {
	if lengthOf(args[0])+lengthOf(args[1]) > maxList {
		return tooMuch
	}
	return 0
}

// compareWork is that of lists and maps. Those that share elements can be much larger than the expressions that made them.
func compareWork(args []ref.Val) int { return min(nestedSize(args[0]), nestedSize(args[1])) }

// stringWork is the size of a string or URL, and zero for most other values.
func stringWork(args []ref.Val) int {
	switch v := args[0].(type) {
	case types.String, apiservercel.URL:
		return scalarSize(v)
	}
	return 0
}

// searchWork is a quarter of the product of the lengths, as the cost of a regular expression in CEL.
func searchWork(args []ref.Val) int {
	text, ok := args[0].(types.String)
	if !ok {
		return textSize(args[0])
	}
	return len(text) * textSize(args[1]) / 4
}

const (
	// perCall is the overload of calls that compile their pattern each time, because it is not constant.
	perCall = "pattern_per_call"
	// ofInstructions begins the overload of calls with a constant pattern. The number of the instructions of its program follows.
	ofInstructions = "pattern_of_instructions_"
)

// maxInstructions is the limit of the instructions of a constant pattern. CEL counts the cost of its call after the call, because it replaces
// the decorated call by one that has compiled the pattern. With a text of 32 KiB, a call needs less than a second.
const maxInstructions = 1_000

// instructionsOf returns the number of instructions of a pattern's program. Repetitions make it much larger than the pattern.
func instructionsOf(pattern ref.Val) int {
	text, _ := pattern.(types.String)
	parsed, err := syntax.Parse(string(text), syntax.Perl)
	if err != nil {
		return 0 // The call fails.
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return 0
	}
	return len(program.Inst)
}

// slowSyntax makes short patterns slow: repetitions, flags such as (?i), and classes of Unicode.
var slowSyntax = regexp.MustCompile(`[{]|[(][?][^:]|\\[pP]`)

func patternWork(args []ref.Val) int {
	pattern, _ := args[1].(types.String)
	if slowSyntax.MatchString(string(pattern)) {
		return tooMuch
	}
	return searchWork(args) + 50*len(pattern)
}

// zoneWork is that of functions that read the file of a time zone.
func zoneWork(args []ref.Val) int { return 500 + 10*textSize(args[1]) }

// workOf returns nil for functions without a limit.
func workOf(function, overload string) func(args []ref.Val) int {
	switch {
	case overload == perCall:
		return patternWork
	case strings.HasPrefix(overload, ofInstructions):
		n, _ := strconv.Atoi(strings.TrimPrefix(overload, ofInstructions))
		return func(args []ref.Val) int { return max(searchWork(args), textSize(args[0])*n/4) }
	case strings.HasSuffix(overload, "_with_tz"):
		return zoneWork
	case readers.Has(function):
		return stringWork
	}
	return works[function]
}

func replaceWork(args []ref.Val) int {
	s, _ := args[0].(types.String)
	from, _ := args[1].(types.String)
	return len(s) + strings.Count(string(s), string(from))*textSize(args[2])
}

func joinWork(args []ref.Val) int {
	size := textSize(args[0])
	if len(args) > 1 {
		size += lengthOf(args[0]) * textSize(args[1])
	}
	return size
}

// longPrecision is a precision of more than three digits in a format.
var longPrecision = regexp.MustCompile(`%[.]\d{4}`)

// formatWork adds up the text and the arguments, which are at most hexadecimal. A precision adds up to 1,000 digits.
func formatWork(args []ref.Val) int {
	format, _ := args[0].(types.String)
	if longPrecision.MatchString(string(format)) {
		return tooMuch
	}
	return len(format) + 2*textSize(args[1]) + 1_000*strings.Count(string(format), "%.")
}

// pairsWork is that of comparing each element of a list with each of another. The smaller of two values ends it, which is at most half of both.
func pairsWork(a, b ref.Val) int {
	return (lengthOf(b)*sumOf(a, maxWork, comparison) + lengthOf(a)*sumOf(b, maxWork, comparison)) / 2
}

// comparison is the work of comparing a scalar in a list: a unit, which includes the place in the list. Comparing texts is fast.
func comparison(scalar ref.Val) int { return 9 + scalarSize(scalar)/256 }

func rangeWork(args []ref.Val) int {
	if n, _ := args[0].(types.Int); n > maxList {
		return tooMuch
	}
	return 0
}

// longExponent is the exponent of a quantity, if it has more than three digits without leading zeros. The time is exponential in it.
var longExponent = regexp.MustCompile(`[eE][+-]?0*[1-9]\d{3,}$`)

// quantityWork is quadratic, because the digits can be many.
func quantityWork(args []ref.Val) int {
	s, _ := args[0].(types.String)
	if longExponent.MatchString(string(s)) {
		return tooMuch
	}
	return len(s) * len(s) / 4
}

// nestedSize is the size of a list, map, optional value or URL as text, otherwise zero.
func nestedSize(v ref.Val) int {
	switch v.(type) {
	case traits.Lister, traits.Mapper, *types.Optional, apiservercel.URL:
		return textSize(v)
	}
	return 0
}

func lengthOf(list ref.Val) int {
	if l, ok := list.(traits.Lister); ok {
		n, _ := l.Size().(types.Int)
		return int(n)
	}
	return 0
}

// implementations returns the implementations of the functions with a limit, by name. They select the overload by the arguments.
func implementations(env *cel.Env) map[string]*functions.Overload {
	// CEL does not declare these two as functions.
	all := map[string]*functions.Overload{
		operators.Equals:    {Operator: operators.Equals, Binary: types.Equal},
		operators.NotEquals: {Operator: operators.NotEquals, Binary: func(a, b ref.Val) ref.Val { return types.Bool(types.Equal(a, b) != types.True) }},
	}
	for name := range works {
		if all[name] != nil {
			continue
		}
		bindings, err := env.Functions()[name].Bindings()
		utilruntime.Must(err)
		for _, b := range bindings {
			if b.Operator == name {
				all[name] = b
			}
		}
	}
	return all
}

// bounded returns a decorator that measures the work of calls before it calls the implementation.
func bounded(all map[string]*functions.Overload) func(interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	return func(i interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
		call, ok := i.(interpreter.InterpretableCall)
		if !ok {
			return i, nil
		}
		name, overload := call.Function(), call.OverloadID()
		if all[name] == nil {
			return i, nil
		}
		if slices.Contains([]string{overloads.Matches, "find", "findAll"}, name) {
			overload = perCall
			if pattern, constant := call.Args()[1].(interpreter.InterpretableConst); constant {
				n := instructionsOf(pattern.Value())
				if n > maxInstructions {
					return nil, fmt.Errorf("the pattern has %d instructions; at most %d are allowed: repeat less", n, maxInstructions)
				}
				overload = ofInstructions + strconv.Itoa(n)
			}
		}
		work := workOf(name, overload)
		return interpreter.NewCall(call.ID(), name, overload, call.Args(), func(args ...ref.Val) ref.Val {
			if work(args) > maxWork {
				return types.NewErr("%s: the call exceeds the cost limit of an expression", strings.Trim(name, "_@"))
			}
			return invoke(all[name], args)
		}), nil
	}
}

// invoke calls the implementation, as CEL does.
func invoke(f *functions.Overload, args []ref.Val) ref.Val {
	switch {
	case f.OperandTrait != 0 && !args[0].Type().HasTrait(f.OperandTrait):
	case len(args) == 1 && f.Unary != nil:
		return f.Unary(args[0])
	case len(args) == 2 && f.Binary != nil:
		return f.Binary(args[0], args[1])
	case f.Function != nil:
		return f.Function(args...)
	}
	return types.NewErr("no such overload: %s", f.Operator)
}

// textSize returns about the size of a value as text, without escapes. It ends when the size is larger than maxWork.
func textSize(v ref.Val) int { return sumOf(v, maxWork, scalarSize) }

// scalarSize is the size of a text, a number or another small value as text.
func scalarSize(v ref.Val) int {
	switch v := v.(type) {
	case types.String:
		return len(v)
	case types.Bytes:
		return len(v)
	case apiservercel.URL:
		return len(v.Path) + len(v.RawQuery) + len(v.Fragment)
	}
	return 20
}

// sumOf adds up scalars in a value. It ends when the sum is larger than the limit.
func sumOf(v ref.Val, limit int, scalar func(ref.Val) int) int {
	switch v := v.(type) {
	case traits.Mapper:
		size := len("{}")
		for it := v.Iterator(); size <= limit && it.HasNext() == types.True; {
			key := it.Next()
			size += sumOf(key, limit-size, scalar) + len(": ")
			if value, ok := v.Find(key); ok {
				size += sumOf(value, limit-size, scalar)
			}
		}
		return size
	case traits.Lister:
		size := len("[]")
		for it := v.Iterator(); size <= limit && it.HasNext() == types.True; {
			size += sumOf(it.Next(), limit-size, scalar) + 1
		}
		return size
	case *types.Optional:
		if v.HasValue() {
			return sumOf(v.GetValue(), limit, scalar)
		}
	}
	return scalar(v)
}

// costs counts the work of the functions with a limit. Otherwise, an expression that iterates over few elements could fill the memory.
type costs struct{ library.CostEstimator }

// CallCost implements interpreter.ActualCostEstimator. Nil means that CEL counts the cost itself.
func (c *costs) CallCost(function, overload string, args []ref.Val, result ref.Val) *uint64 {
	counted := uint64(0)
	if work := workOf(function, overload); work != nil {
		counted = uint64(math.Ceil(float64(work(args)) * common.StringTraversalCostFactor))
	}
	if counted > expressionCostLimit {
		return &counted // The library would read all arguments.
	}
	cost := c.CostEstimator.CallCost(function, overload, args, result)
	if counted == 0 || cost != nil && *cost > counted {
		return cost
	}
	return &counted
}

// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/decls"
	"github.com/google/cel-go/common/functions"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/overloads"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apiserver/pkg/cel/library"
)

// The limits of the results of functions. CEL counts the cost of a call after the call, and cannot interrupt it. The
// cost does not depend on the size of the result either.
const (
	// maxString is the limit of strings and bytes. Larger strings do not fit into annotations.
	maxString = apivalidation.TotalAnnotationSizeLimitB
	// maxList is the limit of the elements of a list. An expression cannot iterate over more.
	maxList = expressionCostLimit
)

// errString is the error of a call whose result is too large.
func errString(function string) ref.Val {
	return types.NewErr("result of %s is larger than %d KiB", function, maxString>>10)
}

// projections return the size of the result of a function, or a size that is not larger. They do not allocate, and end
// when the size is larger than maxString.
var projections = map[string]func(args []ref.Val) int{
	"replace":       projectReplace,
	"join":          projectJoin,
	"format":        projectFormat,
	"strings.quote": projectQuote,
}

// The limits of the product of the lengths of a text and what is searched in it. The cost of a regular expression is a
// fortieth of it. Plain text is about 25 times as fast.
const (
	maxMatch = 40 * expressionCostLimit
	maxIndex = 25 * maxMatch
)

// searches are the functions whose time is this product, and their limits.
var searches = map[string]int{"find": maxMatch, "findAll": maxMatch, "indexOf": maxIndex, "lastIndexOf": maxIndex}

// checkSearch returns an error if the search takes too long.
func checkSearch(function string, limit int, args []ref.Val) ref.Val {
	text, ok := args[0].(types.String)
	if !ok || len(args) < 2 {
		return nil
	}
	if pattern, ok := args[1].(types.String); ok && len(text)*len(pattern) > limit {
		return types.NewErr("%s of a text of %d bytes in one of %d bytes exceeds the cost limit", function, len(pattern), len(text))
	}
	return nil
}

// matches is the function of the same name for patterns that are not constant. CEL replaces it for others.
func matches(args ...ref.Val) ref.Val {
	if err := checkSearch("matches", maxMatch, args); err != nil {
		return err
	}
	text, ok := args[0].(traits.Matcher)
	if !ok {
		return types.NewErr("no such overload: matches")
	}
	return text.Match(args[1])
}

// boundedFunctions returns the functions of the environment with a limit.
func boundedFunctions(env *cel.Env) ([]cel.EnvOption, error) {
	checks := make(map[string]func([]ref.Val) ref.Val, len(projections)+len(searches))
	for name, project := range projections {
		checks[name] = func(args []ref.Val) ref.Val {
			if project(args) > maxString {
				return errString(name)
			}
			return nil
		}
	}
	for name, limit := range searches {
		checks[name] = func(args []ref.Val) ref.Val { return checkSearch(name, limit, args) }
	}
	options := make([]cel.EnvOption, 0, len(checks))
	for name, check := range checks {
		f, ok := env.Functions()[name]
		if !ok {
			return nil, fmt.Errorf("no function %s", name)
		}
		bindings, err := f.Bindings()
		if err != nil {
			return nil, err
		}
		byID := make(map[string]*functions.Overload, len(bindings))
		for _, b := range bindings {
			byID[b.Operator] = b
		}
		var bounded []cel.FunctionOpt
		for _, o := range f.OverloadDecls() {
			b, ok := byID[o.ID()]
			if !ok {
				return nil, fmt.Errorf("no implementation of %s", o.ID())
			}
			overload := decls.Overload
			if o.IsMemberFunction() {
				overload = decls.MemberOverload
			}
			bounded = append(bounded, overload(o.ID(), o.ArgTypes(), o.ResultType(), bind(name, len(o.ArgTypes()), b, check)))
		}
		options = append(options, cel.Function(name, bounded...))
	}
	return options, nil
}

// bind returns the implementation with a limit.
func bind(name string, arguments int, original *functions.Overload, check func([]ref.Val) ref.Val) cel.OverloadOpt {
	call := func(args ...ref.Val) ref.Val {
		if err := check(args); err != nil {
			return err
		}
		var v ref.Val
		switch {
		case original.Unary != nil:
			v = original.Unary(args[0])
		case original.Binary != nil:
			v = original.Binary(args[0], args[1])
		default:
			v = original.Function(args...)
		}
		if s, ok := v.(types.String); ok && len(s) > maxString {
			return errString(name)
		}
		return v
	}
	switch arguments {
	case 1:
		return decls.UnaryBinding(func(v ref.Val) ref.Val { return call(v) })
	case 2:
		return decls.BinaryBinding(func(l, r ref.Val) ref.Val { return call(l, r) })
	}
	return decls.FunctionBinding(call)
}

func projectReplace(args []ref.Val) int {
	s, _ := args[0].(types.String)
	from, _ := args[1].(types.String)
	to, _ := args[2].(types.String)
	n := strings.Count(string(s), string(from))
	if len(args) > 3 {
		if limit, ok := args[3].(types.Int); ok && limit >= 0 {
			n = int(min(int64(n), int64(limit)))
		}
	}
	return len(s) + n*(len(to)-len(from))
}

func projectJoin(args []ref.Val) int {
	list, ok := args[0].(traits.Lister)
	if !ok {
		return 0
	}
	separator := types.String("")
	if len(args) > 1 {
		separator, _ = args[1].(types.String)
	}
	size := 0
	n, _ := list.Size().(types.Int)
	for i := types.Int(0); i < n && size <= maxString; i++ {
		s, ok := list.Get(i).(types.String)
		if !ok {
			return size
		}
		size += len(s)
		if i > 0 {
			size += len(separator)
		}
	}
	return size
}

func projectQuote(args []ref.Val) int {
	s, _ := args[0].(types.String)
	size := len(s) + 2
	for i, r := range string(s) {
		switch r {
		case '\a', '\b', '\f', '\n', '\r', '\t', '\v', '\\', '"':
			size++
		case utf8.RuneError:
			if _, n := utf8.DecodeRuneInString(string(s[i:])); n == 1 {
				size += utf8.RuneLen(utf8.RuneError) - 1
			}
		}
	}
	return size
}

// projectFormat adds up the text and the arguments. A precision adds that many digits.
func projectFormat(args []ref.Val) int {
	format, _ := args[0].(types.String)
	list, ok := args[1].(traits.Lister)
	if !ok {
		return 0
	}
	n, _ := list.Size().(types.Int)
	size, next := 0, types.Int(0)
	for rest := string(format); rest != "" && size <= maxString; {
		text, clause, found := strings.Cut(rest, "%")
		size += len(text)
		if !found {
			break
		}
		if strings.HasPrefix(clause, "%") {
			size++
			rest = clause[1:]
			continue
		}
		if digits, ok := strings.CutPrefix(clause, "."); ok {
			end := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' })
			if end < 0 {
				return size
			}
			// An error means that the number is too large. Then, the function fails, too.
			if precision, err := strconv.Atoi(digits[:end]); err == nil {
				size += min(precision, maxString+1)
			}
			clause = digits[end:]
		}
		if next >= n || clause == "" {
			return size
		}
		factor := 1
		if clause[0] == 'x' || clause[0] == 'X' {
			factor = 2
		}
		size += factor * textSize(list.Get(next), maxString-size)
		next++
		rest = clause[1:]
	}
	return size
}

// textSize returns the size of a value as text, without escapes. It ends when the size is larger than the limit.
func textSize(v ref.Val, limit int) int {
	switch v := v.(type) {
	case types.String:
		return len(v)
	case types.Bytes:
		return len(v)
	case types.Int:
		return digits(float64(v))
	case types.Uint:
		return digits(float64(v))
	case types.Double:
		return digits(float64(v))
	case traits.Mapper:
		size := len("{}")
		for it := v.Iterator(); size <= limit && it.HasNext() == types.True; {
			key := it.Next()
			size += textSize(key, limit-size) + len(": ")
			if value, ok := v.Find(key); ok {
				size += textSize(value, limit-size)
			}
		}
		return size
	case traits.Lister:
		size := len("[]")
		for it := v.Iterator(); size <= limit && it.HasNext() == types.True; {
			size += textSize(it.Next(), limit-size) + 1
		}
		return size
	}
	return 1
}

// digits returns about the number of digits before the point.
func digits(f float64) int {
	if f = math.Abs(f); f > 1 && !math.IsInf(f, 0) {
		return 1 + int(math.Log10(f))
	}
	return 1
}

// costs adds the size of the results to the cost of the functions with a limit, as CEL does for join and +. Otherwise,
// an expression that iterates over few elements could fill the memory.
type costs struct{ library.CostEstimator }

// CallCost implements interpreter.ActualCostEstimator.
func (c *costs) CallCost(function, overload string, args []ref.Val, result ref.Val) *uint64 {
	cost := c.CostEstimator.CallCost(function, overload, args, result)
	if _, bounded := projections[function]; !bounded || function == "join" {
		return cost
	}
	size := 0
	if s, ok := result.(types.String); ok {
		size = len(s)
	}
	if cost == nil {
		if s, ok := args[0].(types.String); ok {
			size += len(s)
		}
		cost = new(uint64)
	}
	sum := *cost + uint64(math.Ceil(float64(size)*common.StringTraversalCostFactor))
	return &sum
}

// boundStandard puts a limit on the results of + and on matches. An environment cannot redefine these functions.
func boundStandard(i interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	call, ok := i.(interpreter.InterpretableCall)
	if !ok || len(call.Args()) != 2 {
		return i, nil
	}
	switch call.Function() {
	case operators.Add:
		return interpreter.NewCall(call.ID(), call.Function(), call.OverloadID(), call.Args(), add), nil
	case overloads.Matches:
		return interpreter.NewCall(call.ID(), call.Function(), call.OverloadID(), call.Args(), matches), nil
	}
	return i, nil
}

func add(args ...ref.Val) ref.Val {
	left, ok := args[0].(traits.Adder)
	if !ok || !args[0].Type().HasTrait(traits.AdderType) {
		return types.NewErr("no such overload: %s", operators.Add)
	}
	switch l := args[0].(type) {
	case types.String:
		if r, ok := args[1].(types.String); ok && len(l)+len(r) > maxString {
			return errString("+")
		}
	case types.Bytes:
		if r, ok := args[1].(types.Bytes); ok && len(l)+len(r) > maxString {
			return errString("+")
		}
	case traits.Lister:
		r, ok := args[1].(traits.Lister)
		if !ok {
			break
		}
		n, _ := l.Size().(types.Int)
		if m, ok := r.Size().(types.Int); ok && int64(n)+int64(m) > maxList {
			return types.NewErr("result of + has more than %d elements", maxList)
		}
	}
	return left.Add(args[1])
}

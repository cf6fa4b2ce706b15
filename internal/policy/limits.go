// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"math"
	"regexp"
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
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/cel/library"
)

// The limits of functions. CEL counts the cost of a call after the call, and cannot interrupt it, so each function whose time or result is not
// linear in its arguments is limited before it runs.
const (
	// maxString is the limit of results that are strings or bytes. Larger strings do not fit into annotations.
	maxString = apivalidation.TotalAnnotationSizeLimitB
	// maxList is the limit of the elements of a list. An expression cannot iterate over more.
	maxList = expressionCostLimit
	// maxMatch is the limit of the product of the lengths of a text and of a pattern. The cost of a regular expression is a fortieth of it.
	maxMatch = 40 * expressionCostLimit
	// maxPairs and maxPairBytes limit functions that compare each element of a list with each of another: to about 20 ms.
	maxPairs     = 2_000_000
	maxPairBytes = 256 << 20
	// maxParsed and maxExponent limit the texts of quantities, addresses, and versions. The time for a quantity is exponential in its exponent.
	maxParsed   = 2 << 10
	maxExponent = 3
)

// checks return an error for a call that exceeds a limit. They need little time themselves, and do not allocate.
var checks = map[string]func(args []ref.Val) error{
	operators.Add:     checkAdd,
	overloads.Matches: checkSearch,
	"replace":         checkReplace,
	"join":            checkJoin,
	"format":          checkFormat,
	"strings.quote":   func(args []ref.Val) error { return checkResult(3 * textSize(args[0], maxString)) },
	"find":            checkSearch,
	"findAll":         checkSearch,
	"indexOf":         checkSearch,
	"lastIndexOf":     checkSearch,
	"distinct":        func(args []ref.Val) error { return checkPairs(args[0], args[0]) },
	"sets.contains":   func(args []ref.Val) error { return checkPairs(args[0], args[1]) },
	"sets.equivalent": func(args []ref.Val) error { return checkPairs(args[0], args[1]) },
	"sets.intersects": func(args []ref.Val) error { return checkPairs(args[0], args[1]) },
	"flatten":         func(args []ref.Val) error { return checkResult(textSize(args[0], maxString)) },
	"lists.range":     checkRange,
	"quantity":        checkQuantity,
	"isQuantity":      checkQuantity,
	"ip":              checkParsed,
	"isIP":            checkParsed,
	"ip.isCanonical":  checkParsed,
	"cidr":            checkParsed,
	"isCIDR":          checkParsed,
	"containsIP":      checkParsed,
	"containsCIDR":    checkParsed,
	"semver":          checkParsed,
	"isSemver":        checkParsed,
	"url":             checkParsed,
	"isURL":           checkParsed,
}

// sized are the functions whose results cost as much as their size.
var sized = sets.New("replace", "format", "strings.quote")

func checkResult(size int) error {
	if size > maxString {
		return fmt.Errorf("result is larger than %d KiB", maxString>>10)
	}
	return nil
}

func checkAdd(args []ref.Val) error {
	switch left := args[0].(type) {
	case types.String, types.Bytes:
		return checkResult(textSize(left, maxString) + textSize(args[1], maxString))
	case traits.Lister:
		return checkLength(lengthOf(left) + lengthOf(args[1]))
	}
	return nil
}

func checkReplace(args []ref.Val) error {
	s, _ := args[0].(types.String)
	from, _ := args[1].(types.String)
	to, _ := args[2].(types.String)
	n := strings.Count(string(s), string(from))
	if len(args) > 3 {
		if limit, ok := args[3].(types.Int); ok && limit >= 0 {
			n = int(min(int64(n), int64(limit)))
		}
	}
	return checkResult(len(s) + n*(len(to)-len(from)))
}

func checkJoin(args []ref.Val) error {
	size := textSize(args[0], maxString)
	if len(args) > 1 {
		size += lengthOf(args[0]) * textSize(args[1], maxString)
	}
	return checkResult(size)
}

// longPrecision is a precision of more than three digits in a format.
var longPrecision = regexp.MustCompile(`%[.]\d{4}`)

// checkFormat adds up the text and the arguments, which are at most hexadecimal. A precision adds up to 1,000 digits.
func checkFormat(args []ref.Val) error {
	format, _ := args[0].(types.String)
	if longPrecision.MatchString(string(format)) {
		return errors.New("the precision has more than 3 digits")
	}
	return checkResult(len(format) + 2*textSize(args[1], maxString) + 1_000*strings.Count(string(format), "%."))
}

func checkSearch(args []ref.Val) error {
	text, isText := args[0].(types.String)
	if !isText || len(args) < 2 {
		return nil
	}
	if pattern, ok := args[1].(types.String); ok && len(text)*len(pattern) > maxMatch {
		return fmt.Errorf("searching a text of %d bytes in one of %d bytes exceeds the cost limit", len(pattern), len(text))
	}
	return nil
}

func checkPairs(a, b ref.Val) error {
	n, m := lengthOf(a), lengthOf(b)
	if n*m > maxPairs || m*textSize(a, maxPairBytes)+n*textSize(b, maxPairBytes) > 2*maxPairBytes {
		return fmt.Errorf("comparing lists of %d and %d elements exceeds the cost limit", n, m)
	}
	return nil
}

func checkLength(elements int) error {
	if elements > maxList {
		return fmt.Errorf("the list has more than %d elements", maxList)
	}
	return nil
}

func checkRange(args []ref.Val) error {
	n, _ := args[0].(types.Int)
	return checkLength(int(n))
}

func checkParsed(args []ref.Val) error {
	for _, arg := range args {
		if s, ok := arg.(types.String); ok && len(s) > maxParsed {
			return fmt.Errorf("the text is longer than %d bytes", maxParsed)
		}
	}
	return nil
}

// exponents are the digits of the exponent of a quantity, without leading zeros.
var exponents = regexp.MustCompile(`[eE][+-]?0*(\d+)$`)

func checkQuantity(args []ref.Val) error {
	if err := checkParsed(args); err != nil {
		return err
	}
	if s, ok := args[0].(types.String); ok {
		if m := exponents.FindStringSubmatch(string(s)); m != nil && len(m[1]) > maxExponent {
			return fmt.Errorf("the exponent has more than %d digits", maxExponent)
		}
	}
	return nil
}

func lengthOf(list ref.Val) int {
	if l, ok := list.(traits.Lister); ok {
		n, _ := l.Size().(types.Int)
		return int(n)
	}
	return 0
}

// implementations returns the implementations of the functions with a limit, by name. They select the overload by the arguments.
func implementations(env *cel.Env) (map[string]*functions.Overload, error) {
	all := map[string]*functions.Overload{}
	for name := range checks {
		f, ok := env.Functions()[name]
		if !ok {
			return nil, fmt.Errorf("no function %s", name)
		}
		bindings, err := f.Bindings()
		if err != nil {
			return nil, err
		}
		for _, b := range bindings {
			if b.Operator == name {
				all[name] = b
			}
		}
	}
	return all, nil
}

// bounded returns a decorator that checks the arguments of calls before it calls the implementation.
func bounded(all map[string]*functions.Overload) func(interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	return func(i interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
		call, ok := i.(interpreter.InterpretableCall)
		if !ok {
			return i, nil
		}
		name := call.Function()
		check, ok := checks[name]
		if !ok {
			return i, nil
		}
		return interpreter.NewCall(call.ID(), name, call.OverloadID(), call.Args(), func(args ...ref.Val) ref.Val {
			if err := check(args); err != nil {
				return types.NewErr("%s: %v", strings.Trim(name, "_"), err)
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

// scalarSize is the size of a number or another small value as text.
const scalarSize = 20

// textSize returns about the size of a value as text, without escapes. It ends when the size is larger than the limit.
func textSize(v ref.Val, limit int) int {
	switch v := v.(type) {
	case types.String:
		return len(v)
	case types.Bytes:
		return len(v)
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
	return scalarSize
}

// costs adds the size of the results to the cost of the functions with a limit, as CEL does for join and +. Otherwise,
// an expression that iterates over few elements could fill the memory.
type costs struct{ library.CostEstimator }

// CallCost implements interpreter.ActualCostEstimator.
func (c *costs) CallCost(function, overload string, args []ref.Val, result ref.Val) *uint64 {
	cost := c.CostEstimator.CallCost(function, overload, args, result)
	if !sized.Has(function) {
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

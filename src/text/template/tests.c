/* Tests: what stands after `is`. */
#include "text/template/filters.h"

#include "text/template/methods.h"

#include <string.h>

#define TEST_FN(name) static Status test_##name(Render *r, Value self, const Value *argv, const Args *args, Value *out)
#define TYPE_TEST(name, condition)                              \
    TEST_FN(name)                                               \
    {                                                           \
        UNUSED(r), UNUSED(argv), UNUSED(args);                  \
        *out = value_bool(condition);                           \
        return OK;                                              \
    }

TYPE_TEST(boolean, self.type == V_BOOL)
TYPE_TEST(callable, self.type == V_FUNCTION || self.type == V_METHOD || self.type == V_MACRO || self.type == V_LOOP ||
                        self.type == V_JOINER || self.type == V_UNDEFINED)
TYPE_TEST(defined, self.type != V_UNDEFINED)
TYPE_TEST(undefined, self.type == V_UNDEFINED)
TYPE_TEST(escaped, self.type == V_STRING && (self.flags & VALUE_MARKUP))
TYPE_TEST(is_false, self.type == V_BOOL && !self.boolean)
TYPE_TEST(is_true, self.type == V_BOOL && self.boolean)
TYPE_TEST(float, self.type == V_FLOAT && !(self.flags & VALUE_TOO_BIG))
TYPE_TEST(integer, self.type == V_INT || (self.type == V_FLOAT && (self.flags & VALUE_TOO_BIG)))
TYPE_TEST(iterable, value_is_iterable(self))
TYPE_TEST(mapping, self.type == V_DICT)
TYPE_TEST(none, self.type == V_NONE)
TYPE_TEST(number, value_is_number(self))
TYPE_TEST(sequence, self.type == V_STRING || self.type == V_LIST || self.type == V_TUPLE || self.type == V_DICT ||
                        self.type == V_RANGE || self.type == V_UNDEFINED)
TYPE_TEST(string, self.type == V_STRING)

static Status remainder_is(Render *r, Value self, Value divisor, int64_t wanted, Value *out)
{
    bool same;
    TRY(value_binary(r, T_MOD, self, divisor, out));
    TRY(value_equal(r, *out, value_int(wanted), &same));
    *out = value_bool(same);
    return OK;
}
TEST_FN(even) { UNUSED(argv), UNUSED(args); return remainder_is(r, self, value_int(2), 0, out); }
TEST_FN(odd) { UNUSED(argv), UNUSED(args); return remainder_is(r, self, value_int(2), 1, out); }
TEST_FN(divisibleby) { UNUSED(args); return remainder_is(r, self, argv[0], 0, out); }

static Status equal(Render *r, Value a, Value b, bool negate, Value *out)
{
    bool same;
    TRY(value_equal(r, a, b, &same));
    *out = value_bool(same != negate);
    return OK;
}
TEST_FN(eq) { UNUSED(args); return equal(r, self, argv[0], false, out); }
TEST_FN(ne) { UNUSED(args); return equal(r, self, argv[0], true, out); }

/* True when the order is one of the two. */
static Status order_is(Render *r, Value a, Value b, const char *op, int one, int other, Value *out)
{
    int order;
    TRY(value_compare(r, a, b, op, &order));
    *out = value_bool(order == one || order == other);
    return OK;
}
TEST_FN(lt) { UNUSED(args); return order_is(r, self, argv[0], "<", -1, -1, out); }
TEST_FN(le) { UNUSED(args); return order_is(r, self, argv[0], "<=", -1, 0, out); }
TEST_FN(gt) { UNUSED(args); return order_is(r, self, argv[0], ">", 1, 1, out); }
TEST_FN(ge) { UNUSED(args); return order_is(r, self, argv[0], ">=", 1, 0, out); }

TEST_FN(in)
{
    bool found;
    UNUSED(args);
    TRY(value_contains(r, self, argv[0], &found));
    *out = value_bool(found);
    return OK;
}

/* The same object; small values are one object each. */
TEST_FN(sameas)
{
    bool same = self.type == argv[0].type;
    UNUSED(args);
    if (same && (self.type == V_LIST || self.type == V_TUPLE || self.type >= V_DICT)) same = self.list == argv[0].list;
    else if (same) TRY(value_equal(r, self, argv[0], &same));
    *out = value_bool(same);
    return OK;
}

static Status case_is(Render *r, Value self, MethodId id, Value *out)
{
    static const Args none = { 0 };
    TRY(value_to_text(r, self, &self));
    return builtin_call(r, &template_text_methods.methods[id], self, &none, out);
}
TEST_FN(lower) { UNUSED(argv), UNUSED(args); return case_is(r, self, M_islower, out); }
TEST_FN(upper) { UNUSED(argv), UNUSED(args); return case_is(r, self, M_isupper, out); }

static Status name_known(Render *r, Value self, const Builtin *table, uint32_t count, Value *out)
{
    TRY(value_hashable(r, self));
    *out = value_bool(self.type == V_STRING && builtin_find(table, count, value_str(self)) != UINT32_MAX);
    return OK;
}
TEST_FN(filter) { UNUSED(argv), UNUSED(args); return name_known(r, self, template_filters, template_num_filters, out); }
TEST_FN(test) { UNUSED(argv), UNUSED(args); return name_known(r, self, template_tests, template_num_tests, out); }

const Builtin template_tests[] = {
    { "defined", test_defined, "" }, { "none", test_none, "" }, { "string", test_string, "" },
    { "undefined", test_undefined, "" }, { "mapping", test_mapping, "" }, { "iterable", test_iterable, "" },
    { "sequence", test_sequence, "" }, { "boolean", test_boolean, "" }, { "true", test_is_true, "" },
    { "false", test_is_false, "" }, { "integer", test_integer, "" }, { "float", test_float, "" },
    { "number", test_number, "" }, { "callable", test_callable, "" }, { "escaped", test_escaped, "" },
    { "even", test_even, "" }, { "odd", test_odd, "" }, { "divisibleby", test_divisibleby, "!num" },
    { "eq", test_eq, "!other" }, { "equalto", test_eq, "!other" }, { "==", test_eq, "!other" },
    { "ne", test_ne, "!other" }, { "!=", test_ne, "!other" },
    { "lt", test_lt, "!other" }, { "lessthan", test_lt, "!other" }, { "<", test_lt, "!other" },
    { "le", test_le, "!other" }, { "<=", test_le, "!other" },
    { "gt", test_gt, "!other" }, { "greaterthan", test_gt, "!other" }, { ">", test_gt, "!other" },
    { "ge", test_ge, "!other" }, { ">=", test_ge, "!other" },
    { "in", test_in, "!seq" }, { "sameas", test_sameas, "!other" }, { "lower", test_lower, "" },
    { "upper", test_upper, "" }, { "filter", test_filter, "" }, { "test", test_test, "" },
};
const uint32_t template_num_tests = sizeof template_tests / sizeof template_tests[0];

/* In bf16, each op, alone or as a step of a chain, has the bits of the same op in fp32, rounded. One operand takes every bf16 value, the
 * other a few. A chain over a row and a column has the bits of its ops run one by one. On a GPU (test_cuda chains), also tests sizes at
 * which a thread takes more elements. */
#include "base/scoped.h"
#include "ops/elementwise/chain.h"
#include "text_run.h"

enum { COLS = 1 << 16, FEW_ROWS = 8, MANY_ROWS = 64, TEXT_BYTES = 4096 };

static const struct {
    int         code;
    const char *operands; /* of the op and of the chain's step: a, b */
    const char *attrs;    /* of the op */
    double      number;   /* of the step */
} steps[] = {{CHAIN_ADD, "ab", "", 0},
             {CHAIN_SUB, "ab", "", 0},
             {CHAIN_SUB, "ba", "", 0},
             {CHAIN_MUL, "ab", "", 0},
             {CHAIN_DIV, "ab", "", 0},
             {CHAIN_DIV, "ba", "", 0},
             {CHAIN_MINIMUM, "ab", "", 0},
             {CHAIN_MINIMUM, "ba", "", 0},
             {CHAIN_MAXIMUM, "ab", "", 0},
             {CHAIN_MAXIMUM, "ba", "", 0},
             {CHAIN_MAXIMUM_BWD, "aba", "{least=true}", 1},
             {CHAIN_EXP, "a", "", 0},
             {CHAIN_LOG, "a", "", 0},
             {CHAIN_SQRT, "a", "", 0},
             {CHAIN_TANH, "a", "", 0},
             {CHAIN_SIGMOID, "a", "", 0},
             {CHAIN_SIGMOID_BWD, "ab", "", 0},
             {CHAIN_SILU, "a", "", 0},
             {CHAIN_SILU_BWD, "ba", "", 0},
             {CHAIN_LOG_SIGMOID, "a", "", 0},
             {CHAIN_LOG_SIGMOID_BWD, "ba", "", 0},
             {CHAIN_SCALE, "a", "{by=0.5}", 0.5},
             {CHAIN_SCALE, "a", "{by=0.1}", (double)0.1f},
             {CHAIN_SOFTCAP, "a", "{cap=30}", 30},
             {CHAIN_SOFTCAP_BWD, "ba", "{cap=30}", 30},
             {CHAIN_GELU, "a", "{tanh=true}", 1},
             {CHAIN_GELU, "a", "{tanh=false}", 0},
             {CHAIN_GELU_BWD, "ba", "{tanh=true}", 1},
             {CHAIN_RELU, "a", "{squared=false}", 0},
             {CHAIN_RELU, "a", "{squared=true}", 1},
             {CHAIN_RELU_BWD, "ba", "{squared=false}", 0},
             {CHAIN_RELU_BWD, "ba", "{squared=true}", 1}};

/* Zeros, ones, infinities, NaN with a payload, the least and largest numbers, and numbers in between. */
static uint16_t second_operand(int row)
{
    static const uint16_t some[FEW_ROWS] = {0x8000, 0x3F80, 0xFF80, 0xFFC1, 0x0001, 0x807F, 0x7F7F, 0x4049};
    return row < FEW_ROWS ? some[row] : (uint16_t)((uint32_t)row * 2654435761u >> 16);
}

static void write_operands(Run *r, int rows)
{
    SCOPED_ARRAY(uint16_t, a, rows * COLS);
    SCOPED_ARRAY(uint16_t, b, rows * COLS);
    for (int64_t i = 0; i < (int64_t)rows * COLS; i++) {
        a[i] = (uint16_t)(i % COLS);
        b[i] = second_operand((int)(i / COLS));
    }
    EXPECT_OK(session_write(r->session, "a", a, (size_t)rows * COLS * sizeof *a));
    EXPECT_OK(session_write(r->session, "b", b, (size_t)rows * COLS * sizeof *b));
}

static bool is_nan(uint16_t number)
{
    return (number & 0x7FFF) > 0x7F80;
}

/* Expects output `name` to be output `expected`; NaN may differ in sign and payload. */
static void compare(Run *r, int rows, const char *what, const char *name, const char *expected)
{
    size_t  bytes = (size_t)rows * COLS * sizeof(uint16_t);
    int64_t off = 0, first = 0;
    SCOPED_ARRAY(uint16_t, got, rows * COLS);
    SCOPED_ARRAY(uint16_t, want, rows * COLS);
    EXPECT_OK(session_output(r->session, r->program, name, got, bytes));
    EXPECT_OK(session_output(r->session, r->program, expected, want, bytes));
    for (int64_t i = 0; i < (int64_t)rows * COLS; i++)
        if (got[i] != want[i] && !(is_nan(got[i]) && is_nan(want[i])) && !off++) first = i;
    if (off)
        test_fail(__FILE__, __LINE__, "%s: %lld results of \"%s\" differ, the first for %04x and %04x: %04x, expected %04x", what,
                  (long long)off, name, (unsigned)(first % COLS), second_operand((int)(first / COLS)), got[first], want[first]);
}

/* Appends the call of an op. first: the name of operand a; the others follow. */
static void print_call(char *text, const char *op, char first, const char *operands, const char *attrs)
{
    size_t at = strlen(text);
    for (int k = 0; operands[k]; k++) at += (size_t)snprintf(text + at, TEXT_BYTES - at, "%s%c", k ? ", " : op, first + operands[k] - 'a');
    snprintf(text + at, TEXT_BYTES - at, ") %s\n", attrs);
}

static void check_step(int i, int rows)
{
    char        text[TEXT_BYTES], call[64], list[128], at[CHAIN_OPERANDS][16] = {"-1", "-1", "-1"};
    const char *operands = steps[i].operands, *name = chain_op(steps[i].code)->name;
    Run         r;
    for (int k = 0; operands[k]; k++) snprintf(at[k], sizeof at[k], "%d", operands[k] - 'a');
    snprintf(list, sizeof list, "{steps=[%d, %d, %s, %s, %s, %.9g, 0]}", steps[i].code, DT_BF16, at[0], at[1], at[2], steps[i].number);
    snprintf(text, sizeof text,
             "graph \"step\"\ninput a: bf16[%1$d,%2$d]\ninput b: bf16[%1$d,%2$d]\n"
             "p: f32[%1$d,%2$d] = cast(a) {dtype=f32}\nq: f32[%1$d,%2$d] = cast(b) {dtype=f32}\n",
             rows, COLS);
    snprintf(call, sizeof call, "z: f32[%d,%d] = %s(", rows, COLS, name);
    print_call(text, call, 'p', operands, steps[i].attrs);
    snprintf(call, sizeof call, "x: bf16[%d,%d] = %s(", rows, COLS, name);
    print_call(text, call, 'a', operands, steps[i].attrs);
    snprintf(call, sizeof call, "y: bf16[%d,%d] = chain(", rows, COLS);
    print_call(text, call, 'a', "ab", list);
    snprintf(text + strlen(text), sizeof text - strlen(text),
             "w: bf16[%d,%d] = cast(z) {dtype=bf16}\noutput rounded = w\noutput alone = x\noutput chain = y\n", rows, COLS);
    run_open(&r, text);
    write_operands(&r, rows);
    EXPECT_OK(session_run(r.session, r.program));
    compare(&r, rows, name, "alone", "rounded");
    compare(&r, rows, name, "chain", "rounded");
    run_close(&r);
}

static void steps_are_their_ops_in_fp32_rounded(void)
{
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        check_step((int)i, FEW_ROWS);
#ifdef FAMILY_CUDA
        check_step((int)i, MANY_ROWS);
#endif
    }
}

static const char rows_text[] = "graph \"rows\"\n"
                                "input a: bf16[%1$d,%2$d]\n"
                                "input b: bf16[%1$d,%2$d]\n"
                                "input w: bf16[1,%2$d]\n"
                                "input n: bf16[%1$d,1]\n"
                                "x.1: bf16[%1$d,%2$d] = mul(a, n)\n"
                                "x.2: bf16[%1$d,%2$d] = mul(x.1, w)\n"
                                "x.3: bf16[%1$d,%2$d] = add(x.2, w)\n"
                                "x.4: bf16[%1$d,%2$d] = relu(x.3) {squared=false}\n"
                                "x.5: bf16[%1$d,%2$d] = sub(b, x.4)\n"
                                "y: bf16[%1$d,%2$d] = chain(a, b, w, n) {steps=[%3$d, %7$d, 0, 3, -1, 0, -1, %3$d, %7$d, 8, 2, -1, 0, -1, "
                                "%4$d, %7$d, 9, 2, -1, 0, -1, %5$d, %7$d, 10, -1, -1, 0, -1, %6$d, %7$d, 1, 11, -1, 0, 0]}\n"
                                "output alone = x.5\n"
                                "output chain = y\n";

/* A chain over a row, the same for all rows (w), and a column, one number per row (n). */
static void check_rows(int rows)
{
    char     text[TEXT_BYTES];
    uint16_t w[COLS], n[MANY_ROWS];
    Run      r;
    snprintf(text, sizeof text, rows_text, rows, COLS, CHAIN_MUL, CHAIN_ADD, CHAIN_RELU, CHAIN_SUB, DT_BF16);
    run_open(&r, text);
    write_operands(&r, rows);
    for (int i = 0; i < COLS; i++) w[i] = (uint16_t)((uint32_t)i * 2654435761u >> 16);
    for (int i = 0; i < rows; i++) n[i] = second_operand(MANY_ROWS - i);
    EXPECT_OK(session_write(r.session, "w", w, sizeof w));
    EXPECT_OK(session_write(r.session, "n", n, (size_t)rows * sizeof *n));
    EXPECT_OK(session_run(r.session, r.program));
    compare(&r, rows, "rows", "chain", "alone");
    run_close(&r);
}

static void rows_and_columns_are_their_ops(void)
{
    check_rows(FEW_ROWS);
#ifdef FAMILY_CUDA
    check_rows(MANY_ROWS);
#endif
}

TEST_MAIN(TEST(steps_are_their_ops_in_fp32_rounded), TEST(rows_and_columns_are_their_ops))

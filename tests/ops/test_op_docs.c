/* docs/ops.md agrees with the descriptors and ops.def.
 *
 *   test_op_docs [--update]    run from the top of the project; --update rewrites the page */
#include "base/strbuf.h"
#include "ops/ops.h"
#include "test.h"

static const char page_path[] = "docs/ops.md";

static StrBuf read_file(const char *path)
{
    StrBuf text = {0};
    FILE  *file = fopen(path, "rb");
    char   buf[4096];
    if (!file) return text;
    for (size_t n; (n = fread(buf, 1, sizeof buf, file)) > 0;) strbuf_append(&text, buf, n);
    fclose(file);
    return text;
}

static void write_attrs(StrBuf *out, const OpDef *op)
{
    static const char *const types[] = {[ATTR_TYPE_INT] = "int",
                                        [ATTR_TYPE_FLOAT] = "float",
                                        [ATTR_TYPE_BOOL] = "bool",
                                        [ATTR_TYPE_DTYPE] = "dtype",
                                        [ATTR_TYPE_LIST] = "numbers"};
    const char              *separator = "\nAttributes: ";
    for (const AttrDef *a = op->attrs; a && a->type != ATTR_TYPE_END; a++, separator = ", ") {
        strbuf_printf(out, "%s`%s` (%s, ", separator, a->name, types[a->type]);
        if (a->type == ATTR_TYPE_BOOL)
            strbuf_puts(out, a->default_value != 0 ? "true)" : "false)");
        else if (a->type == ATTR_TYPE_DTYPE)
            strbuf_puts(out, "the operands')");
        else if (a->of_node)
            strbuf_puts(out, "the node's own)");
        else if (a->type == ATTR_TYPE_LIST)
            strbuf_puts(out, "none)");
        else
            strbuf_printf(out, "%.12g)", a->default_value);
    }
    if (op->attrs) strbuf_puts(out, ".\n");
}

static void write_facts(StrBuf *out, const OpDef *op)
{
    strbuf_puts(out, op->backward ? "\nDifferentiable." : op->flags & OP_STOPS ? "\nStops gradients." : "\nNo gradient.");
    if (op->flags & OP_VIEW) strbuf_puts(out, " A view: no kernel runs.");
    if (op->inplace) strbuf_puts(out, " Output 0 may share the memory of input");
    for (int i = 0, before = 0; i < op->num_in; i++)
        if (op->inplace >> i & 1) strbuf_printf(out, before++ ? " or %d" : " %d", i);
    if (op->inplace) strbuf_puts(out, ".");
    if (op->flags & OP_RANDOM) strbuf_puts(out, " Draws random numbers.");
    for (int i = 0; i < op->num_alias; i++)
        strbuf_printf(out, op->alias[i].accumulate ? " Output %d is added to input %d." : " Output %d is input %d, updated.",
                      op->alias[i].out, op->alias[i].in);
    for (int i = 0; i < OP_MAX_KERNELS && op->cpu[i].run; i++) strbuf_printf(out, "%s%s", i ? ", " : " CPU kernels: ", op->cpu[i].name);
    if (op->cpu[0].run) strbuf_putc(out, '.');
    strbuf_putc(out, '\n');
}

static StrBuf generate(void)
{
    StrBuf out = {0};
    strbuf_puts(
        &out,
        "# Ops\n\n<!-- Written by build/tests/test_op_docs --update from the descriptors in src/ops; "
        "edit those. -->\n\n"
        "N: all leading dims, B: batch, T: sequence, C: hidden, V: vocabulary, H: query heads, G: "
        "key/value heads, D: head\n"
        "dim, F: intermediate, P: positions. `[x]`: optional input or output; `x'`: x updated in place. Floats are f32 or bf16, and f16 too "
        "in ops that decoding runs;\n"
        "each tensor may have another dtype. Arithmetic is fp32. `acc`: the tensor that the result is added to; it sets the result's dtype.\n"
        "Attributes have a type and a default; `dw_dtype` is the dtype of a parameter's gradient if there is no `acc`.\n");
    for (int id = 0; id < OP_COUNT; id++) {
        const OpDef *op = op_table[id];
        strbuf_printf(&out, "\n## %s\n\n    %s\n\n%s\n", op->name, op_signatures[id], op->synopsis);
        write_attrs(&out, op);
        write_facts(&out, op);
    }
    return out;
}

static void the_page_is_current(void)
{
    StrBuf want = generate(), page = read_file(page_path);
    if (strcmp(strbuf_cstr(&want), strbuf_cstr(&page)) != 0)
        test_fail(__FILE__, __LINE__, "%s differs from the descriptors: run test_op_docs --update from the top of the project", page_path);
    strbuf_deinit(&want);
    strbuf_deinit(&page);
}

static int update(void)
{
    StrBuf text = generate();
    FILE  *file = fopen(page_path, "wb");
    bool   ok = file && fwrite(text.data, 1, text.len, file) == text.len;
    if (file) ok = fclose(file) == 0 && ok;
    if (!ok) perror(page_path);
    strbuf_deinit(&text);
    return !ok;
}

int main(int argc, char **argv)
{
    static const TestCase cases[] = {TEST(the_page_is_current)};
    if (argc > 1 && strcmp(argv[1], "--update") == 0) return update();
    return test_run(cases, 1, argc, argv);
}

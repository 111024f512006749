/* Ops against PyTorch in fp64: tests/fixtures/ops.safetensors, written by tests/oracle/make_op_cases.py.
 *
 *   test_op_oracle [op]
 */
#include "base/json.h"
#include "files/safetensors.h"
#include "ops/op_case.h"

static const char fixture_path[] = "tests/fixtures/ops.safetensors";

/* json NULL: the list is empty. */
static void read_list(const JsonValue *json, AttrList *list)
{
    for (uint32_t i = 0; json && i < json->count && i < ATTR_LIST_MOST; i++) list->values[list->count++] = json->items[i].number;
}

/* Reads the attributes of a case over the op's defaults; false: the op lacks one of them. */
static bool read_attrs(const OpDef *op, const JsonValue *json, char *attrs)
{
    uint32_t known = 0;
    for (const AttrDef *a = op->attrs; a && a->type != ATTR_TYPE_END; a++) {
        double      number = a->default_value;
        int64_t     whole = (int64_t)a->default_value;
        const char *text = NULL;
        DType       dtype;
        bool        flag = a->default_value != 0;
        known += json_get(json, a->name) != NULL;
        if (a->type == ATTR_TYPE_FLOAT) json_get_double(json, a->name, &number);
        if (a->type == ATTR_TYPE_INT) json_get_int(json, a->name, &whole);
        if (a->type == ATTR_TYPE_BOOL) json_get_bool(json, a->name, &flag);
        if (a->type == ATTR_TYPE_DTYPE && json_get_str(json, a->name, &text) && dtype_parse(text, &dtype)) whole = DTYPE_TO_ATTR(dtype);
        if (a->type == ATTR_TYPE_LIST) read_list(json_get(json, a->name), (AttrList *)(void *)(attrs + a->offset));
        if (a->type == ATTR_TYPE_FLOAT) memcpy(attrs + a->offset, &number, sizeof number);
        if (a->type == ATTR_TYPE_INT || a->type == ATTR_TYPE_DTYPE) memcpy(attrs + a->offset, &whole, sizeof whole);
        if (a->type == ATTR_TYPE_BOOL) memcpy(attrs + a->offset, &flag, sizeof flag);
    }
    return known == json->count;
}

/* Formats of two elements per byte: the file has the packed bytes. */
static const struct {
    const char *suffix;
    DType       dtype;
} packed[] = {{".nf4", DT_NF4}, {".e2m1", DT_E2M1}};

static TensorType type_of(const StTensor *t)
{
    TensorType type = {.ndim = (uint8_t)t->ndim};
    EXPECT(st_dtype_to(t->dtype, &type.dtype) && t->ndim >= 1 && t->ndim <= TENSOR_MAX_DIMS);
    for (int d = 0; d < t->ndim && d < TENSOR_MAX_DIMS; d++) type.dim[d] = t->dim[d];
    for (int i = 0; i < 2; i++) {
        if (!strstr(t->name, packed[i].suffix)) continue;
        type.dtype = packed[i].dtype;
        type.dim[type.ndim - 1] *= 2;
    }
    return type;
}

static const StTensor *tensor_of(const StFile *file, const char *name, const char *kind, int k)
{
    char path[256];
    snprintf(path, sizeof path, "%s.%s%d", name, kind, k);
    const StTensor *found = st_find(file, path);
    for (int i = 0; i < 2 && !found; i++) {
        snprintf(path, sizeof path, "%s.%s%d%s", name, kind, k, packed[i].suffix);
        found = st_find(file, path);
    }
    return found;
}

/* Every kernel of the op on the case's inputs must be within 1e-5 of the expected result, relative to the largest element, or to 1 if that
 * is larger. */
static void check_case(const StFile *file, const OpDef *op, const char *name, const JsonValue *json)
{
    TensorType in[NODE_MAX_IN] = {0};
    char      *attrs = calloc(1, op->attrs_size + 1);
    OpCase     c;
    if (!read_attrs(op, json, attrs)) test_fail(__FILE__, __LINE__, "%s: an attribute that %s doesn't have", name, op->name);
    for (int i = 0; i < op->num_in; i++)
        if (tensor_of(file, name, "in", i)) in[i] = type_of(tensor_of(file, name, "in", i));
    Status status = op_case_make(&c, op, attrs, in);
    free(attrs);
    if (status != OK) test_fail(__FILE__, __LINE__, "%s: %s", name, status_message());
    for (int i = 0; status == OK && i < op->num_in; i++)
        if (in[i].ndim) memcpy(c.in[i].data, tensor_of(file, name, "in", i)->data, c.in[i].bytes);
    for (const CpuKernel *kernel = op->cpu; status == OK && kernel < op->cpu + OP_MAX_KERNELS && kernel->run; kernel++) {
        if (op_case_run(&c, kernel, 1, name) != OK) test_fail(__FILE__, __LINE__, "%s: %s", name, status_message());
        int compared = 0;
        for (int k = 0; k < op->num_out; k++) {
            const StTensor *want = tensor_of(file, name, "out", k);
            if (!want) continue;
            TensorType type = type_of(want);
            compared++;
            if (!c.all_out[k] || !type_equal(&type, &c.all_out[k]->type)) {
                test_fail(__FILE__, __LINE__, "%s: output %d has another type", name, k);
                continue;
            }
            double error = tensor_errors(&type, c.out[k].data, &type, want->data, 1.0).most;
            if (!(error <= 1e-5)) test_fail(__FILE__, __LINE__, "%s, kernel %s: output %d is off by %.3g", name, kernel->name, k, error);
        }
        if (!compared) test_fail(__FILE__, __LINE__, "%s: no output to compare", name);
    }
    op_case_free(&c);
}

static const OpDef *find_op(const char *name)
{
    for (int i = 0; i < OP_COUNT; i++)
        if (strcmp(op_table[i]->name, name) == 0) return op_table[i];
    return NULL;
}

int main(int argc, char **argv)
{
    Arena     arena = {0};
    StFile   *file = NULL;
    JsonValue cases;
    int       passed = 0, failed = 0;
    Status    status = st_open(fixture_path, &file);
    if (status == OK) {
        const char *text = st_metadata(file, "cases");
        status = json_parse(&arena, fixture_path, text ? text : "", text ? strlen(text) : 0, &cases);
    }
    if (status != OK) {
        fprintf(stderr, "%s (run from the top of the project)\n", status_message());
        return 1;
    }
    bool seen[OP_COUNT] = {0};
    for (uint32_t i = 0; i < cases.count; i++) {
        const char *name = cases.members[i].key.data;
        char        op_name[64];
        snprintf(op_name, sizeof op_name, "%.*s", (int)strcspn(name, "."), name);
        const OpDef *op = find_op(op_name);
        if (argc > 1 && strcmp(argv[1], op_name) != 0) continue;
        test_failures_of_case = 0;
        if (!op) test_fail(__FILE__, __LINE__, "%s: no op %s", name, op_name);
        if (op) check_case(file, op, name, &cases.members[i].value);
        if (op) seen[op->id] = true;
        if (test_failures_of_case) fprintf(stderr, "FAILED %s\n", name);
        *(test_failures_of_case ? &failed : &passed) += 1;
    }
    for (int id = 0; id < OP_COUNT; id++) {
        if (seen[id] || argc > 1 || op_table[id]->flags & (OP_VIEW | OP_RANDOM | OP_COLLECTIVE))
            continue; /* test_collectives runs the collectives */
        fprintf(stderr, "FAILED %s has no case\n", op_table[id]->name);
        failed++;
    }
    st_close(file);
    arena_deinit(&arena);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed || !passed;
}

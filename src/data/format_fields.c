/* Sets of the fields that no layout reads. */
#include "data/format_internal.h"

#include <stdio.h>
#include <string.h>

static void add_name(FieldSet *set, const char *name)
{
    for (int i = 0; i < set->count; i++)
        if (strcmp(set->names[i], name) == 0) return;
    if (set->count == FIELD_SET_MAX)
        set->has_more = true;
    else
        snprintf(set->names[set->count++], FIELD_NAME_BYTES, "%s", name);
}

/* Is "in.name" in the set, uncut? Most calls find it; comparing without building that string is cheaper. */
static bool has_name(const FieldSet *set, const char *in, Str name)
{
    size_t in_len = in ? strlen(in) : 0, begin = in ? in_len + 1 : 0;
    for (int i = 0; i < set->count; i++) {
        const char *known = set->names[i];
        if (strncmp(known, in ? in : "", in_len) != 0 || (in && known[in_len] != '.')) continue;
        if (str_equal(name, known + begin)) return true;
    }
    return false;
}

void field_set_add(FieldSet *set, const char *in, Str name)
{
    if (has_name(set, in, name)) return;
    char   text[FIELD_NAME_BYTES];
    size_t at = (size_t)snprintf(text, sizeof text, "%s%s", in ? in : "", in ? "." : "");
    size_t len = name.len < sizeof text - 1 - at ? name.len : sizeof text - 1 - at;
    while (len < name.len && len > 0 && ((unsigned char)name.data[len] & 0xc0) == 0x80) len--; /* don't cut within a UTF-8 character */
    for (size_t i = 0; i < len; i++) {
        bool is_control = (unsigned char)name.data[i] < 0x20 || name.data[i] == 0x7f; /* would disturb a terminal */
        text[at++] = is_control ? '?' : name.data[i];
    }
    text[at] = 0;
    add_name(set, text);
}

void field_set_merge(FieldSet *set, const FieldSet *from)
{
    for (int i = 0; i < from->count; i++) add_name(set, from->names[i]);
    set->has_more |= from->has_more;
}

void field_set_put(const FieldSet *set, StrBuf *out)
{
    for (int i = 0; i < set->count; i++) strbuf_printf(out, "%s%s", i ? ", " : "", set->names[i]);
    if (set->has_more) strbuf_puts(out, " and more");
}

bool says_nothing(const JsonValue *value)
{
    if (!value || value->type == JSON_NULL) return true;
    if (value->type == JSON_STRING) return value->string.len == 0;
    return (value->type == JSON_ARRAY || value->type == JSON_OBJECT) && value->count == 0;
}

void note_unused(FieldSet *unused, const char *in, const JsonValue *object, const char *const *used, int num_used)
{
    for (uint32_t i = 0; unused && object->type == JSON_OBJECT && i < object->count; i++) {
        const JsonMember *member = &object->members[i];
        bool              is_used = says_nothing(&member->value);
        for (int k = 0; k < num_used && !is_used; k++) is_used = str_equal(member->key, used[k]);
        if (!is_used) field_set_add(unused, in, member->key);
    }
}

void sample_reads(Sample *sample, const char *name)
{
    CHECK(sample->num_fields < SAMPLE_MAX_FIELDS);
    if (name) sample->fields[sample->num_fields++] = name;
}

#include "tests/support/parsed.h"

static void put(void *object)
{
    json_object_put(object);
}

json_object *parsed(const char *text)
{
    enum json_tokener_error error;
    json_object *root = json_tokener_parse_verbose(text ? text : "", &error);
    if (error != json_tokener_success)
        fail_msg("%s: %.1000s", json_tokener_error_desc(error), text ? text : "(nothing)");
    at_end(put, root);
    return root;
}

/* json_pointer_get finds no null in a list. */
static bool is_null_of_list(json_object *root, const char *path)
{
    const char *last = strrchr(path, '/');
    json_object *list = NULL;
    return last && json_pointer_get(root, textf("%.*s", (int)(last - path), path), &list) == 0 &&
           json_object_is_type(list, json_type_array) && strtoul(last + 1, NULL, 10) < json_object_array_length(list);
}

json_object *parsed_at(json_object *root, const char *path)
{
    json_object *found = NULL;
    if (json_pointer_get(root, path, &found) != 0 && !is_null_of_list(root, path))
        fail_msg("there is no '%s' in %.1000s", path, json_object_to_json_string(root));
    return found;
}

double parsed_number(json_object *root, const char *path)
{
    json_object *found = parsed_at(root, path);
    return found ? json_object_get_double(found) : NAN;
}

void parsed_figures(json_object *root, const struct parsed_figure *figures)
{
    for (; figures->path; figures++)
        check_near(parsed_number(root, figures->path), figures->value, 0, figures->path);
}

const char *parsed_text(json_object *root, const char *path)
{
    return json_object_get_string(parsed_at(root, path));
}

size_t parsed_count(json_object *root, const char *path)
{
    return json_object_array_length(parsed_at(root, path));
}

/* JSON that a test has got, read by json-c and looked into by paths such as "/tables/0/name". It lasts until the
 * program ends. */
#pragma once

#include <json-c/json.h>

#include "tests/support/test.h"

/* Fails the test unless the text is JSON. */
json_object *parsed(const char *text);
/* Fails the test if nothing is there; NULL: null. */
json_object *parsed_at(json_object *root, const char *path);
/* NAN: null. */
double parsed_number(json_object *root, const char *path);
const char *parsed_text(json_object *root, const char *path);
/* FIGURES(root, {"/a/b", 3}, {"/c", NAN}): fails unless these numbers are at these paths. */
struct parsed_figure {
    const char *path;
    double value;
};
void parsed_figures(json_object *root, const struct parsed_figure *figures);
#define FIGURES(root, ...) parsed_figures(root, (const struct parsed_figure[]){__VA_ARGS__, {0}})
/* Number of elements of a list. */
size_t parsed_count(json_object *root, const char *path);

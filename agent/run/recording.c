#include "agent/run/recording.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/env/picture.h"
#include "agent/run/thin.h"
#include "proto/base/io.h"
#include "proto/base/log.h"
#include "proto/base/need.h"

#define MOST_ACTIONS 8u /* numbers of a continuous action */
#define FRAME_WIDTH 1000.0
#define HEAD "{\"head\": {"

struct recording {
    char path[512];
    struct env_picture picture;
    struct text scene;
    struct text *frames;
    uint32_t n, room;
    size_t bytes;         /* of the frames */
    uint64_t step, every; /* every so many steps there is a frame */
    double value;         /* return so far */
};

static void path_of(const char *folder, char *out, size_t size)
{
    snprintf(out, size, "%s/" RECORDING_FILE, folder);
}

struct recording *recording_new(const char *folder, bool fresh)
{
    if (!folder || !folder[0])
        return NULL;
    struct recording *self = need_alloc(sizeof *self);
    path_of(folder, self->path, sizeof self->path);
    io_make_parents(self->path, 0755); /* once: if the folder goes away later, that is logged */
    if (fresh)
        unlink(self->path);
    return self;
}

static void clear(struct recording *self)
{
    for (uint32_t i = 0; i < self->n; i++)
        text_fini(&self->frames[i]);
    self->n = 0;
    self->bytes = self->scene.size = 0;
    self->step = 0;
    self->every = 1;
    self->value = 0;
}

void recording_destroy(struct recording **self)
{
    if (!*self)
        return;
    clear(*self);
    text_fini(&(*self)->scene);
    free((*self)->frames);
    free(*self);
    *self = NULL;
}

/* ---- a picture as text ---- */

/* JSON has no word for the numbers of an agent that has diverged. */
static void put_number(struct text *out, double value)
{
    if (isfinite(value))
        text_add(out, "%.6g", value);
    else
        text_add(out, "null");
}

/* Adds the shapes that belong to the scene, or the others. */
static void put_shapes(struct text *out, const rp_drawing *drawing, bool scene)
{
    const char *comma = "";
    double scale = FRAME_WIDTH / (drawing->right - drawing->left);
    text_add(out, "[");
    for (uint32_t i = 0; i < drawing->n; i++) {
        const rp_shape *shape = &drawing->shapes[i];
        if ((shape->role == RP_ROLE_SCENE) != scene)
            continue;
        text_add(out, "%s%d,%d,%.0f,%.0f", comma, (int)shape->kind, (int)shape->role,
                 scale * (shape->x - drawing->left), scale * (drawing->top - shape->y));
        if (shape->kind != RP_SHAPE_CIRCLE)
            text_add(out, ",%.0f,%.0f", scale * (shape->x2 - drawing->left), scale * (drawing->top - shape->y2));
        if (shape->kind != RP_SHAPE_BOX)
            text_add(out, ",%.0f", scale * shape->size);
        comma = ",";
    }
    text_add(out, "]");
}

static uint32_t packed_colour(const uint8_t *rgb)
{
    return (uint32_t)(rgb[0] >> 4) << 8 | (uint32_t)(rgb[1] >> 4) << 4 | rgb[2] >> 4;
}

static void put_pixels(struct text *out, const struct env_picture *picture)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t n = picture->width * picture->height;
    text_add(out, "\"");
    for (uint32_t i = 0, run; i < n; i += run) {
        uint32_t colour = packed_colour(picture->rgb + 3 * (size_t)i);
        for (run = 1; run < 64 && i + run < n && packed_colour(picture->rgb + 3 * (size_t)(i + run)) == colour; run++)
            continue;
        text_add(out, "%c%c%c", digits[run - 1], digits[colour >> 6], digits[colour & 63]);
    }
    text_add(out, "\"");
}

static void put_action(struct text *out, const rp_env_spec *spec, const void *action)
{
    if (!action) {
        text_add(out, "null");
    } else if (spec->n_actions) {
        text_add(out, "%d", *(const int32_t *)action);
    } else {
        for (uint32_t i = 0; i < spec->action_size && i < MOST_ACTIONS; i++) {
            text_add(out, "%s", i ? "," : "[");
            put_number(out, round(100 * (double)((const float *)action)[i]) / 100);
        }
        text_add(out, "]");
    }
}

/* ---- frames ---- */

static void halve(struct recording *self)
{
    uint32_t kept = 0;
    self->bytes = 0;
    self->every *= 2;
    for (uint32_t i = 0; i < self->n; i++) {
        if (i % 2) {
            text_fini(&self->frames[i]);
            continue;
        }
        self->bytes += self->frames[i].size;
        self->frames[kept++] = self->frames[i];
    }
    self->n = kept;
}

static void add_frame(struct recording *self, const struct env *env, const void *observation, const void *action)
{
    struct text frame = {0};
    picture_take(env, observation, &self->picture);
    text_add(&frame, "[%llu,", (unsigned long long)self->step);
    put_number(&frame, self->value);
    text_add(&frame, ",");
    put_action(&frame, &env->spec, action);
    text_add(&frame, ",");
    if (self->picture.width > 0)
        put_pixels(&frame, &self->picture);
    else
        put_shapes(&frame, &self->picture.drawing, false);
    text_add(&frame, "]");
    if (self->n == self->room)
        self->frames = need_resize(self->frames, self->room = self->room ? 2 * self->room : 64, sizeof *self->frames);
    self->frames[self->n++] = frame;
    self->bytes += frame.size;
    while (self->bytes > RECORDING_BYTES && self->n > 2)
        halve(self);
}

void recording_begin(struct recording *self, const struct env *env, const void *observation)
{
    clear(self);
    add_frame(self, env, observation, NULL);
    if (self->picture.width == 0)
        put_shapes(&self->scene, &self->picture.drawing, true);
}

void recording_step(struct recording *self, const struct env *env, const void *observation, const void *action,
                    const rp_env_result *result)
{
    self->step++;
    self->value += (double)result->reward;
    if (self->step % self->every == 0 || result->terminal || result->truncated)
        add_frame(self, env, observation, action);
}

/* ---- the file ---- */

struct kept_line {
    char *text; /* with its end */
    uint64_t at;
    double mean;
};

struct kept_lines {
    struct kept_line list[RECORDINGS_KEPT + 1];
    uint32_t n;
};

static void drop_line(struct kept_lines *self, uint32_t index)
{
    free(self->list[index].text);
    memmove(&self->list[index], &self->list[index + 1], (--self->n - index) * sizeof *self->list);
}

/* Takes a line; one that was cut off by a crash is left out. */
static void take_line(struct kept_lines *self, char *text)
{
    double at = thin_number(text, "\"at\": ");
    size_t size = strlen(text);
    if (strncmp(text, HEAD, strlen(HEAD)) != 0 || text[size - 1] != '\n' || !(at >= 0) || self->n > RECORDINGS_KEPT) {
        free(text);
        return;
    }
    self->list[self->n++] = (struct kept_line){text, (uint64_t)at, thin_number(text, "\"mean\": ")};
}

static void lines_read(struct kept_lines *self, const char *path)
{
    FILE *from = fopen(path, "re");
    char *line = NULL;
    size_t room = 0;
    *self = (struct kept_lines){0};
    for (; from && getline(&line, &room, from) > 0; line = NULL, room = 0)
        take_line(self, line);
    free(line);
    if (from)
        fclose(from);
}

static void lines_fini(struct kept_lines *self)
{
    while (self->n > 0)
        drop_line(self, self->n - 1);
}

/* Drops the one between whose neighbours the least lies. */
static void thin_lines(struct kept_lines *self)
{
    uint32_t best = 0, least = 1;
    for (uint32_t i = 0; i < self->n; i++) /* NaN: of an agent that has diverged */
        best = isnan(self->list[best].mean) || self->list[i].mean >= self->list[best].mean ? i : best;
    uint64_t gap = UINT64_MAX;
    for (uint32_t i = 1; i + 1 < self->n; i++) {
        uint64_t around = self->list[i + 1].at - self->list[i - 1].at;
        if (i != best && around < gap) {
            gap = around;
            least = i;
        }
    }
    drop_line(self, least);
}

static char *line_of(const struct recording *self, const char *environment, const struct best *of)
{
    const struct env_picture *picture = &self->picture;
    struct json json = {0};
    double aspect = (picture->drawing.top - picture->drawing.bottom) / (picture->drawing.right - picture->drawing.left);
    json_begin(&json, "head", '{');
    json_count(&json, "at", of->environment_steps ? of->environment_steps : of->learner_steps);
    json_real(&json, "mean", of->value);
    json_count(&json, "episodes", of->episodes);
    json_real(&json, "return", self->value);
    json_count(&json, "steps", self->step);
    json_count(&json, "learner_steps", of->learner_steps);
    json_text(&json, "environment", environment);
    json_real(&json, "step_s", picture->step_s);
    json_count(&json, "width", picture->width);
    json_real(&json, "height", picture->width ? (double)picture->height : round(FRAME_WIDTH * aspect));
    json_close(&json, '}');
    char *head = json_take(&json);
    struct text line = {0};
    text_add(&line, "{%s, \"scene\": %s, \"frames\": [", head ? head : "",
             self->scene.size ? text_get(&self->scene) : "[]");
    for (uint32_t i = 0; i < self->n; i++)
        text_add(&line, "%s%s", i ? "," : "", text_get(&self->frames[i]));
    text_add(&line, "]}\n");
    free(head);
    return line.data;
}

void recording_save(struct recording *self, const char *environment, const struct best *evaluation)
{
    struct kept_lines lines;
    struct text all = {0};
    if (!self || self->n == 0)
        return;
    lines_read(&lines, self->path);
    char *line = line_of(self, environment, evaluation);
    uint64_t at = (uint64_t)thin_number(line, "\"at\": ");
    while (lines.n > 0 && lines.list[lines.n - 1].at >= at) /* of a leg that was resumed from before */
        drop_line(&lines, lines.n - 1);
    take_line(&lines, line);
    while (lines.n > RECORDINGS_KEPT)
        thin_lines(&lines);
    for (uint32_t i = 0; i < lines.n; i++)
        text_add(&all, "%s", lines.list[i].text);
    if (!io_replace(self->path, text_get(&all), all.size, 0666, false))
        log_line(LEVEL_WARN, "A0306", "the recorded episode could not be saved: the page does not show it",
                 "path=%s why=%s", self->path, strerror(errno));
    text_fini(&all);
    lines_fini(&lines);
    clear(self);
}

/* ---- reading ---- */

void recording_put_list(struct json *out, const char *folder, uint32_t most)
{
    struct kept_lines lines;
    char path[512];
    path_of(folder, path, sizeof path);
    lines_read(&lines, path);
    json_open(out, '{');
    json_begin(out, "episodes", '[');
    for (uint32_t i = lines.n > most ? lines.n - most : 0; i < lines.n; i++) {
        char *head = lines.list[i].text + strlen(HEAD) - 1, *end = strstr(head, "}, \"scene\"");
        if (end)
            end[1] = '\0';
        json_raw(out, head);
    }
    json_close(out, ']');
    json_close(out, '}');
    lines_fini(&lines);
}

char *recording_read(const char *folder, bool newest, uint64_t *at)
{
    struct kept_lines lines;
    char path[512], *out = NULL;
    path_of(folder, path, sizeof path);
    lines_read(&lines, path);
    for (uint32_t i = lines.n; i-- > 0 && !out;)
        if (newest || lines.list[i].at == *at) {
            *at = lines.list[i].at;
            out = lines.list[i].text;
            lines.list[i].text = NULL;
        }
    lines_fini(&lines);
    return out;
}

/* Charts as text, with axes that have round ticks. */
#include "agent/launch/plot.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/need.h"

#define PLOT_MAX_TICKS 24u

struct plot_axis {
    double low, high; /* both are ticks on the y axis; the data's own ends on the x axis */
    double step, first;
    uint32_t ticks;
};

#define PLOT_LARGEST 1e200

/* True for a number that can be drawn: finite, and small enough to compute differences. */
static bool plot_drawable(double value)
{
    return isfinite(value) && fabs(value) < PLOT_LARGEST;
}

/* 1, 2 or 5 times a power of ten, so that about n steps make up the range. */
static double round_step(double range, uint32_t n)
{
    double raw = range / (n > 2 ? n : 2), power = pow(10, floor(log10(raw))), part = raw / power;
    return power * (part <= 1.0001 ? 1 : part <= 2.0001 ? 2 : part <= 5.0001 ? 5 : 10);
}

/* whole: the ends move out to ticks. */
static void axis_set(struct plot_axis *self, double low, double high, uint32_t n, bool whole)
{
    double size = fmax(fabs(low), fabs(high));
    if (!(high - low > size * 1e-9)) {
        /* A single value is put in the middle. */
        double margin = size > 0 ? size * 0.1 : 1;
        low -= margin;
        high += margin;
    }
    self->step = round_step(high - low, n);
    self->low = whole ? floor(low / self->step + 1e-6) * self->step : low;
    self->high = whole ? ceil(high / self->step - 1e-6) * self->step : high;
    self->first = ceil(self->low / self->step - 1e-6) * self->step;
    double ticks = floor((self->high - self->first) / self->step + 1e-6) + 1;
    self->ticks = ticks < 0 ? 0 : ticks > PLOT_MAX_TICKS ? PLOT_MAX_TICKS : (uint32_t)ticks;
}

/* Computes both axes for all lines, with about this many ticks. False: there is nothing to draw. */
static bool plot_axes(const struct plot *plot, uint32_t x_ticks, uint32_t y_ticks, struct plot_axis *x,
                      struct plot_axis *y)
{
    double left = INFINITY, right = -INFINITY, low = INFINITY, high = -INFINITY;
    for (uint32_t i = 0; i < plot->n_lines && i < PLOT_MAX_LINES; i++) {
        const struct plot_line *line = &plot->lines[i];
        for (uint32_t k = 0; k < line->n; k++) {
            if (!plot_drawable(line->x[k]) || !plot_drawable(line->y[k]))
                continue;
            left = fmin(left, line->x[k]);
            right = fmax(right, line->x[k]);
            low = fmin(low, line->y[k]);
            high = fmax(high, line->y[k]);
        }
    }
    if (!(left <= right))
        return false;
    if (plot->from_zero) {
        low = fmin(low, 0);
        high = fmax(high, 0);
    }
    /* An axis that begins near 0 begins at 0. */
    if (left > 0 && left < 0.5 * right)
        left = 0;
    /* A constant 0 lies at the lower end of its axis. */
    if (low == 0 && high == 0)
        high = 1;
    axis_set(x, left, right, x_ticks, false);
    axis_set(y, low, high, y_ticks, true);
    return true;
}

static double plot_tick(const struct plot_axis *axis, uint32_t i)
{
    double value = axis->first + i * axis->step;
    return fabs(value) < axis->step * 1e-6 ? 0 : value;
}

/* 0..1 between the ends. */
static double plot_share(const struct plot_axis *axis, double value)
{
    double share = (value - axis->low) / (axis->high - axis->low);
    return share > 1 ? 1 : share > 0 ? share : 0;
}

/* "0", "250", "0.05", "10 k": all ticks of an axis with the same digits. out: FORMAT_SIZE bytes. */
static const char *plot_label(const struct plot_axis *axis, double value, char *out)
{
    static const char *const units[] = {"", " k", " M", " G", " T"};
    double largest = fmax(fabs(axis->low), fabs(axis->high)), scale = 1;
    uint32_t unit = 0;
    while (largest / scale >= 9999.5 && unit < 4) {
        scale *= 1000;
        unit++;
    }
    if (largest / scale >= 1e6 || axis->step < 1e-6) {
        snprintf(out, FORMAT_SIZE, "%.3g", value);
        return out;
    }
    double decimals = ceil(-log10(axis->step / scale) - 1e-6);
    int digits = decimals > 0 ? decimals < 9 ? (int)decimals : 9 : 0;
    snprintf(out, FORMAT_SIZE, "%.*f%s", digits, value / scale, value == 0 ? "" : units[unit]);
    return out;
}

/* Line charts out of characters: dots of braille (two by four to a character) where there is UTF-8, else marks. */

#define MIN_COLUMNS 24u
#define MIN_ROWS 6u
#define MAX_COLUMNS 400u
#define MAX_ROWS 200u

struct raster {
    uint32_t columns, rows;  /* characters inside of the axes */
    uint32_t fine_x, fine_y; /* dots to a character */
    uint8_t *dots;           /* of a character: a bit for each dot, as braille numbers them */
    uint8_t *marks;          /* of a character: 0, or 1 + the line whose point it is */
    struct plot_axis x, y;
};

static const char *const round_marks[PLOT_MAX_LINES] = {"●", "○", "◆", "◇", "■", "□", "▲", "△"};
static const char plain_marks[PLOT_MAX_LINES + 1] = "*o+x#@%&";

static void raster_dot(struct raster *self, int64_t x, int64_t y, uint32_t line, bool mark)
{
    static const uint8_t bits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    int64_t wide = (int64_t)self->columns * self->fine_x, tall = (int64_t)self->rows * self->fine_y;
    if (x < 0 || y < 0 || x >= wide || y >= tall)
        return;
    uint32_t cell = (uint32_t)(y / self->fine_y) * self->columns + (uint32_t)(x / self->fine_x);
    self->dots[cell] |= bits[y % self->fine_y][x % self->fine_x];
    if (mark)
        self->marks[cell] = (uint8_t)(line + 1);
}

static int64_t raster_x(const struct raster *self, double value)
{
    return (int64_t)(plot_share(&self->x, value) * (self->columns * self->fine_x - 1) + 0.5);
}

static int64_t raster_y(const struct raster *self, double value)
{
    return (int64_t)((1 - plot_share(&self->y, value)) * (self->rows * self->fine_y - 1) + 0.5);
}

/* Draws all dots between two places. */
static void raster_stroke(struct raster *self, const int64_t from[2], const int64_t to[2], uint32_t line, bool mark)
{
    int64_t dx = to[0] - from[0], dy = to[1] - from[1];
    int64_t n = llabs(dx) > llabs(dy) ? llabs(dx) : llabs(dy);
    for (int64_t i = 0; i <= n; i++) {
        int64_t x = from[0] + (n ? (int64_t)llround((double)dx * (double)i / (double)n) : 0);
        int64_t y = from[1] + (n ? (int64_t)llround((double)dy * (double)i / (double)n) : 0);
        raster_dot(self, x, y, line, mark);
    }
}

static void raster_draw(struct raster *self, const struct plot_line *line, uint32_t index, bool utf8)
{
    int64_t last[2] = {0, 0};
    bool begun = false;
    for (uint32_t i = 0; i < line->n; i++) {
        if (!plot_drawable(line->x[i]) || !plot_drawable(line->y[i])) {
            begun = false;
            continue;
        }
        int64_t at[2] = {raster_x(self, line->x[i]), raster_y(self, line->y[i])};
        raster_stroke(self, begun ? last : at, at, index, !utf8);
        if (line->points)
            raster_dot(self, at[0], at[1], index, true);
        memcpy(last, at, sizeof last);
        begun = true;
    }
}

static void raster_cell(struct text *out, uint8_t dots, uint8_t mark, bool utf8)
{
    if (mark && utf8)
        text_add(out, "%s", round_marks[(mark - 1) % PLOT_MAX_LINES]);
    else if (mark)
        text_add(out, "%c", plain_marks[(mark - 1) % PLOT_MAX_LINES]);
    else if (dots)
        text_add(out, "%c%c%c", 0xe2, 0xa0 | dots >> 6, 0x80 | (dots & 0x3f)); /* U+2800 + dots */
    else
        text_add(out, " ");
}

/* The label of the tick in this row; "" if the row has none. */
static const char *label_of(const struct raster *self, uint32_t row, char *out)
{
    for (uint32_t i = 0; i < self->y.ticks; i++) {
        double value = plot_tick(&self->y, i);
        if ((uint32_t)(raster_y(self, value) / self->fine_y) == row)
            return plot_label(&self->y, value, out);
    }
    return "";
}

static void raster_rows(struct text *out, const struct raster *self, uint32_t left, bool utf8)
{
    char label[FORMAT_SIZE];
    for (uint32_t row = 0; row < self->rows; row++) {
        const char *tick = label_of(self, row, label);
        struct text cells = {0};
        text_add(out, "%*s %s", (int)left, tick, utf8 ? tick[0] ? "┤" : "│" : tick[0] ? "+" : "|");
        uint32_t end = self->columns;
        while (end && !self->dots[row * self->columns + end - 1])
            end--;
        for (uint32_t c = 0; c < end; c++) {
            uint32_t cell = row * self->columns + c;
            raster_cell(&cells, self->dots[cell], self->marks[cell], utf8);
        }
        text_add(out, "%s\n", text_get(&cells));
        text_fini(&cells);
    }
}

/* Draws the x axis, its numbers, and its name behind the last number where there is room. */
static void raster_axis(struct text *out, const struct raster *self, const char *name, uint32_t left, bool utf8)
{
    char numbers[MAX_COLUMNS + 64], label[FORMAT_SIZE];
    bool ticks[MAX_COLUMNS] = {false};
    uint32_t used = 0, wide = left + 2 + self->columns;
    memset(numbers, ' ', sizeof numbers);
    for (uint32_t i = 0; i < self->x.ticks; i++) {
        double value = plot_tick(&self->x, i);
        uint32_t at = (uint32_t)(raster_x(self, value) / self->fine_x);
        uint32_t size = (uint32_t)strlen(plot_label(&self->x, value, label)), middle = left + 2 + at;
        uint32_t from = middle > size / 2 ? middle - size / 2 : 0;
        from = from + size > wide ? wide - size : from;
        ticks[at] = true;
        if (used && from < used + 2)
            continue;
        memcpy(numbers + from, label, size);
        used = from + size;
    }
    text_add(out, "%*s %s", (int)left, "", utf8 ? "└" : "+");
    for (uint32_t c = 0; c < self->columns; c++)
        text_add(out, "%s", utf8 ? ticks[c] ? "┬" : "─" : ticks[c] ? "+" : "-");
    text_add(out, "\n%.*s\n", (int)used, numbers);
    size_t size = name ? format_width(name) : 0;
    if (size && size < wide)
        text_add(out, "%*s%s\n", (int)(left + 2 + (self->columns > size ? (self->columns - size) / 2 : 0)), "", name);
}

/* Draws what is above the axes: the title, the name of the y axis, and the names of several lines. */
static uint32_t raster_top(struct text *out, const struct plot *plot, uint32_t columns, bool utf8)
{
    uint32_t rows = 0;
    struct text line = {0};
    if (plot->title && plot->title[0])
        text_add(&line, "%s", plot->title);
    if (plot->y_label && plot->y_label[0])
        text_add(&line, line.size ? " (%s)" : "%s", plot->y_label);
    if (line.size) {
        text_add(out, "%.*s\n", (int)format_cut(text_get(&line), columns), text_get(&line));
        rows++;
    }
    text_fini(&line);
    for (uint32_t i = 0; i < plot->n_lines && plot->n_lines > 1; i++) {
        const struct plot_line *one = &plot->lines[i];
        if (!utf8)
            text_add(&line, "%c %s   ", plain_marks[i], one->name ? one->name : "");
        else
            text_add(&line, "%s %s   ", one->points ? round_marks[i] : "──", one->name ? one->name : "");
    }
    if (line.size) {
        text_add(out, "%.*s\n", (int)format_cut(text_get(&line), columns), text_get(&line));
        rows++;
    }
    text_fini(&line);
    return rows;
}

static uint32_t widest_label(const struct plot_axis *axis)
{
    char label[FORMAT_SIZE];
    size_t most = 1;
    for (uint32_t i = 0; i < axis->ticks; i++) {
        size_t size = strlen(plot_label(axis, plot_tick(axis, i), label));
        most = size > most ? size : most;
    }
    return (uint32_t)most;
}

static uint32_t within(uint32_t value, uint32_t least, uint32_t most)
{
    return value < least ? least : value > most ? most : value;
}

void plot_text(struct text *out, const struct plot *plot, uint32_t columns, uint32_t rows, bool utf8)
{
    struct plot own = *plot;
    own.n_lines = own.n_lines < PLOT_MAX_LINES ? own.n_lines : PLOT_MAX_LINES;
    columns = within(columns, MIN_COLUMNS, MAX_COLUMNS);
    rows = within(rows, MIN_ROWS, MAX_ROWS);
    uint32_t around = raster_top(out, &own, columns, utf8) + 2 + (own.x_label && own.x_label[0] ? 1 : 0);
    struct raster raster = {.fine_x = utf8 ? 2 : 1, .fine_y = utf8 ? 4 : 1};
    raster.rows = rows > around + 2 ? rows - around : 2;
    if (!plot_axes(&own, within(columns / 16, 2, 20), within(raster.rows / 2, 1, 8), &raster.x, &raster.y)) {
        text_add(out, "no data\n");
        return;
    }
    uint32_t left = widest_label(&raster.y);
    raster.columns = columns > left + 2 + 4 ? columns - left - 2 : 4;
    raster.dots = need_alloc((size_t)raster.columns * raster.rows);
    raster.marks = need_alloc((size_t)raster.columns * raster.rows);
    for (uint32_t i = 0; i < own.n_lines; i++)
        raster_draw(&raster, &own.lines[i], i, utf8);
    raster_rows(out, &raster, left, utf8);
    raster_axis(out, &raster, own.x_label, left, utf8);
    free(raster.dots);
    free(raster.marks);
}

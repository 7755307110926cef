/* Line charts as SVG: one element with its own style, for a file or inside a page. */
#include "agent/launch/plot/plot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "agent/launch/plot/plot_axis.h"

/* Colours that differ in hue and lightness, and stand out on white and on black. A dashed line has the colour of the
 * line before it: prediction and outcome belong together. */
static const char style[] =
    "<style>.plot{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',sans-serif;font-size:11px}"
    ".plot .ground{fill:#ffffff}.plot .grid{stroke:#e4e7ec;stroke-width:1}.plot .axis{stroke:#8b95a5;stroke-width:1}"
    ".plot text{fill:#5b6675}.plot .title{fill:#1f2733;font-size:14px;font-weight:600}"
    ".plot .line{fill:none;stroke-width:1.75;stroke-linejoin:round;stroke-linecap:round}"
    ".plot .dashed{stroke-dasharray:6 5;stroke-opacity:.75}"
    ".plot .c0{stroke:#2f7de1}.plot .c1{stroke:#e67700}.plot .c2{stroke:#12a071}.plot .c3{stroke:#b154cf}"
    ".plot .c4{stroke:#d9485f}.plot .c5{stroke:#14a0b8}.plot .c6{stroke:#a88600}.plot .c7{stroke:#7a869a}"
    ".plot .f0{fill:#2f7de1}.plot .f1{fill:#e67700}.plot .f2{fill:#12a071}.plot .f3{fill:#b154cf}"
    ".plot .f4{fill:#d9485f}.plot .f5{fill:#14a0b8}.plot .f6{fill:#a88600}.plot .f7{fill:#7a869a}"
    "@media (prefers-color-scheme:dark){.plot .ground{fill:#161b22}.plot .grid{stroke:#2a313c}"
    ".plot .axis{stroke:#6b7685}.plot text{fill:#9aa5b4}.plot .title{fill:#e6ebf2}}</style>";

struct canvas {
    struct text *out;
    const struct plot *plot;
    double width, height, left, right, top, bottom; /* of the drawing and of the inside of its axes */
    struct plot_axis x, y;
};

void plot_escape(struct text *out, const char *text)
{
    for (const char *s = text ? text : ""; *s;) {
        size_t plain = strcspn(s, "&<>\"'\x01\x02\x03\x04\x05\x06\x07\x08\x0b\x0c\x0e\x0f\x10\x11\x12\x13\x14\x15\x16"
                                  "\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f\x7f");
        text_add(out, "%.*s", (int)plain, s);
        s += plain;
        if (*s == '\0')
            break;
        text_add(out, "%s",
                 *s == '&'    ? "&amp;"
                 : *s == '<'  ? "&lt;"
                 : *s == '>'  ? "&gt;"
                 : *s == '"'  ? "&quot;"
                 : *s == '\'' ? "&#39;"
                              : "?"); /* characters that XML forbids */
        s++;
    }
}

static uint32_t colour_of(const struct plot *plot, uint32_t index)
{
    uint32_t colour = 0;
    for (uint32_t i = 1; i <= index; i++)
        colour += !plot->lines[i].dashed;
    return colour % 8;
}

static double at_x(const struct canvas *self, double value)
{
    return self->left + plot_share(&self->x, value) * (self->right - self->left);
}

static double at_y(const struct canvas *self, double value)
{
    return self->bottom - plot_share(&self->y, value) * (self->bottom - self->top);
}

static void add_text(struct canvas *self, double x, double y, const char *attributes, const char *text)
{
    text_add(self->out, "<text x=\"%.1f\" y=\"%.1f\"%s%s>", x, y, attributes[0] ? " " : "", attributes);
    plot_escape(self->out, text);
    text_add(self->out, "</text>");
}

/* ---- frame ---- */

/* An estimate: the real width depends on the reader's font. */
static double text_size(const char *text)
{
    return 6.2 * (double)format_width(text);
}

/* Returns the number of rows that the legend takes. */
static uint32_t legend(struct canvas *self)
{
    const struct plot *plot = self->plot;
    double x = self->left, y = self->top;
    uint32_t rows = 1;
    if (plot->n_lines < 2)
        return 0;
    for (uint32_t i = 0; i < plot->n_lines; i++) {
        const struct plot_line *line = &plot->lines[i];
        const char *name = line->name ? line->name : "";
        double size = 26 + text_size(name) + 16;
        if (x > self->left && x + size > self->width) {
            x = self->left;
            y += 16;
            rows++;
        }
        text_add(self->out, "<path class=\"line c%u%s\" d=\"M%.1f %.1fh20\"/>", colour_of(plot, i),
                 line->dashed ? " dashed" : "", x, y - 4);
        add_text(self, x + 26, y, "", name);
        x += size;
    }
    return rows;
}

static void axes(struct canvas *self)
{
    char label[FORMAT_SIZE];
    for (uint32_t i = 0; i < self->y.ticks; i++) {
        double value = plot_tick(&self->y, i), y = at_y(self, value);
        text_add(self->out, "<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/>", self->left, y, self->right);
        add_text(self, self->left - 8, y + 4, "text-anchor=\"end\"", plot_label(&self->y, value, label));
    }
    for (uint32_t i = 0; i < self->x.ticks; i++) {
        double value = plot_tick(&self->x, i), x = at_x(self, value);
        text_add(self->out, "<path class=\"axis\" d=\"M%.1f %.1fv4\"/>", x, self->bottom);
        add_text(self, x, self->bottom + 17, "text-anchor=\"middle\"", plot_label(&self->x, value, label));
    }
    text_add(self->out, "<path class=\"axis\" d=\"M%.1f %.1fH%.1f\"/>", self->left, self->bottom, self->right);
}

static void labels(struct canvas *self)
{
    const struct plot *plot = self->plot;
    if (plot->x_label && plot->x_label[0])
        add_text(self, (self->left + self->right) / 2, self->height - 8, "text-anchor=\"middle\"", plot->x_label);
    if (plot->y_label && plot->y_label[0]) {
        double middle = (self->top + self->bottom) / 2;
        text_add(self->out, "<text transform=\"translate(16 %.1f) rotate(-90)\" text-anchor=\"middle\">", middle);
        plot_escape(self->out, plot->y_label);
        text_add(self->out, "</text>");
    }
}

/* ---- lines ---- */

/* Points that fall into one column of pixels are replaced by four: the first, the lowest, the highest and the last. */
struct column {
    double x; /* x of the first point */
    double y[4];
    uint32_t at[4], n;
};

static void column_add(struct column *self, double x, double y)
{
    if (self->n == 0) {
        self->x = x;
        for (uint32_t i = 0; i < 4; i++) {
            self->y[i] = y;
            self->at[i] = 0;
        }
    }
    if (y < self->y[1]) {
        self->y[1] = y;
        self->at[1] = self->n;
    }
    if (y > self->y[2]) {
        self->y[2] = y;
        self->at[2] = self->n;
    }
    self->y[3] = y;
    self->at[3] = self->n++;
}

static void column_end(struct column *self, struct text *path, bool *begun)
{
    static const uint32_t rising[] = {0, 1, 2, 3}, falling[] = {0, 2, 1, 3};
    const uint32_t *order = self->at[1] <= self->at[2] ? rising : falling;
    for (uint32_t i = 0; i < 4 && self->n; i++) {
        uint32_t k = order[i];
        if (i && self->at[k] == self->at[order[i - 1]])
            continue;
        text_add(path, "%s%.1f %.1f", *begun ? "L" : "M", self->x, self->y[k]);
        *begun = true;
    }
    self->n = 0;
}

/* A point between two gaps has no line that would show it, so it gets a mark. Returns true if a mark is due. */
static bool is_alone(const struct plot_line *line, uint32_t i)
{
    bool before = i > 0 && plot_drawable(line->x[i - 1]) && plot_drawable(line->y[i - 1]);
    bool after = i + 1 < line->n && plot_drawable(line->x[i + 1]) && plot_drawable(line->y[i + 1]);
    return !before && !after;
}

static void draw_line(struct canvas *self, uint32_t index)
{
    const struct plot_line *line = &self->plot->lines[index];
    uint32_t colour = colour_of(self->plot, index);
    struct text path = {0}, marks = {0};
    struct column column = {0};
    bool begun = false, all = line->points && line->n <= 200;
    for (uint32_t i = 0; i < line->n; i++) {
        if (!plot_drawable(line->x[i]) || !plot_drawable(line->y[i])) {
            column_end(&column, &path, &begun);
            begun = false;
            continue;
        }
        double x = at_x(self, line->x[i]), y = at_y(self, line->y[i]);
        if (column.n && floor(x) != floor(column.x))
            column_end(&column, &path, &begun);
        column_add(&column, x, y);
        if (all || is_alone(line, i))
            text_add(&marks, "<circle class=\"f%u\" cx=\"%.1f\" cy=\"%.1f\" r=\"2.8\"/>", colour, x, y);
    }
    column_end(&column, &path, &begun);
    if (path.size) {
        text_add(self->out, "<path class=\"line c%u%s\" d=\"%s\"><title>", colour, line->dashed ? " dashed" : "",
                 text_get(&path));
        plot_escape(self->out, line->name);
        text_add(self->out, "</title></path>");
    }
    text_add(self->out, "%s", text_get(&marks));
    text_fini(&path);
    text_fini(&marks);
}

void plot_svg(struct text *out, const struct plot *plot, uint32_t width, uint32_t height)
{
    struct plot own = *plot;
    own.n_lines = own.n_lines < PLOT_MAX_LINES ? own.n_lines : PLOT_MAX_LINES;
    width = width < 160 ? 160 : width;
    height = height < 120 ? 120 : height;
    struct canvas self = {.out = out, .plot = &own, .width = width, .height = height};
    self.left = own.y_label && own.y_label[0] ? 72 : 56;
    self.right = width - 20.0;
    self.bottom = height - (own.x_label && own.x_label[0] ? 44.0 : 28.0);
    self.top = own.title && own.title[0] ? 46 : 26;
    text_add(out,
             "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"plot\" role=\"img\" width=\"%u\" height=\"%u\" "
             "viewBox=\"0 0 %u %u\"><title>",
             width, height, width, height);
    plot_escape(out, own.title);
    text_add(out, "</title>%s<rect class=\"ground\" width=\"%u\" height=\"%u\" rx=\"10\"/>", style, width, height);
    struct plot_axis any;
    bool some = plot_axes(&own, 1, 1, &any, &any);
    uint32_t rows = some ? legend(&self) : 0;
    self.top += rows ? 16.0 * rows - 2 : -8;
    self.top = fmin(self.top, self.bottom - 40);
    if (own.title && own.title[0])
        add_text(&self, 16, 24, "class=\"title\"", own.title);
    if (some) {
        plot_axes(&own, (uint32_t)(self.right - self.left) / 90, (uint32_t)(self.bottom - self.top) / 40, &self.x,
                  &self.y);
        axes(&self);
        labels(&self);
        for (uint32_t i = 0; i < own.n_lines; i++)
            draw_line(&self, i);
    } else {
        add_text(&self, width / 2.0, height / 2.0, "text-anchor=\"middle\"", "no data");
    }
    text_add(out, "</svg>\n");
}

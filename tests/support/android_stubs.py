"""As much of Android's classes as the sample's app names, for compilers that have no Android SDK.

    write_stubs(folder)                      Java sources, declarations that do nothing

Signatures are those of API level 24 and later, nullability included. Owns no test.
"""

from __future__ import annotations

from pathlib import Path

# By class: what it extends, and its members as Java declares them.
STUBS = {
    "android.content.Context": (
        "",
        "public android.content.res.AssetManager getAssets() { return null; }",
        "public java.io.File getCodeCacheDir() { return null; }",
    ),
    "android.view.ContextThemeWrapper": ("android.content.Context", ""),
    "android.app.Activity": (
        "android.view.ContextThemeWrapper",
        "protected void onCreate(android.os.Bundle savedInstanceState) {}",
        "protected void onDestroy() {}",
        "public void setContentView(int layoutResID) {}",
        "public <T extends android.view.View> T findViewById(int id) { return null; }",
        "public final void runOnUiThread(Runnable action) {}",
    ),
    "android.os.Bundle": ("", ""),
    "android.os.ParcelFileDescriptor": ("", "public int getFd() { return 0; }"),
    "android.content.res.AssetFileDescriptor": (
        "",
        "public android.os.ParcelFileDescriptor getParcelFileDescriptor() { return null; }",
        "public long getStartOffset() { return 0; }",
        "public long getLength() { return 0; }",
        "public void close() throws java.io.IOException {}",
    ),
    "android.content.res.AssetManager": (
        "",
        "public java.io.InputStream open(String fileName) throws java.io.IOException "
        "{ return null; }",
        "public AssetFileDescriptor openFd(String fileName) throws java.io.IOException "
        "{ return null; }",
    ),
    "android.graphics.Bitmap": (
        "",
        "public enum Config { ARGB_8888 }",
        "public static Bitmap createBitmap(int width, int height, Config config) { return null; }",
        "public Bitmap copy(Config config, boolean isMutable) { return null; }",
        "public int getWidth() { return 0; }",
        "public int getHeight() { return 0; }",
        "public void getPixels(int[] pixels, int offset, int stride, int x, int y, int width, "
        "int height) {}",
    ),
    "android.graphics.Canvas": (
        "",
        "public Canvas(Bitmap bitmap) {}",
        "public void drawColor(int color) {}",
        "public void drawText(String text, float x, float y, Paint paint) {}",
        "public void drawRect(float left, float top, float right, float bottom, Paint paint) {}",
        "public int save() { return 0; }",
        "public void restore() {}",
        "public final void rotate(float degrees, float px, float py) {}",
    ),
    "android.graphics.Color": (
        "",
        "public static final int BLACK = 0xff000000, BLUE = 0xff0000ff, RED = 0xffff0000;",
        "public static final int WHITE = 0xffffffff;",
    ),
    "android.graphics.Paint": (
        "",
        "public static final int ANTI_ALIAS_FLAG = 1;",
        "public enum Style { FILL, STROKE, FILL_AND_STROKE }",
        "public Paint() {}",
        "public Paint(int flags) {}",
        "public int getColor() { return 0; }",
        "public void setColor(int color) {}",
        "public Style getStyle() { return null; }",
        "public void setStyle(Style style) {}",
        "public float getStrokeWidth() { return 0; }",
        "public void setStrokeWidth(float width) {}",
        "public float getTextSize() { return 0; }",
        "public void setTextSize(float textSize) {}",
        "public Typeface getTypeface() { return null; }",
        "public Typeface setTypeface(Typeface typeface) { return null; }",
        "public float measureText(String text) { return 0; }",
    ),
    "android.graphics.Typeface": ("", "public static final Typeface SANS_SERIF = null;"),
    "android.view.View": ("", ""),
    "android.view.ViewGroup": ("android.view.View", ""),
    "android.widget.Adapter": ("", ""),
    "android.widget.SpinnerAdapter": ("android.widget.Adapter", ""),
    "android.widget.AdapterView": (
        "android.view.ViewGroup",
        "public interface OnItemSelectedListener {\n"
        "    void onItemSelected(AdapterView<?> parent, android.view.View view, int position, "
        "long id);\n"
        "    void onNothingSelected(AdapterView<?> parent);\n"
        "  }",
        "public final OnItemSelectedListener getOnItemSelectedListener() { return null; }",
        "public void setOnItemSelectedListener(OnItemSelectedListener listener) {}",
    ),
    "android.widget.Spinner": ("android.widget.AdapterView<SpinnerAdapter>", ""),
    "android.widget.ImageView": (
        "android.view.View",
        "public void setImageBitmap(android.graphics.Bitmap bm) {}",
    ),
    "android.widget.TextView": (
        "android.view.View",
        "public CharSequence getText() { return null; }",
        "public final void setText(CharSequence text) {}",
        "public final void setText(int resid) {}",
    ),
}
_KINDS = {
    "android.widget.AdapterView": "abstract class AdapterView<T extends Adapter>",
    "android.widget.Adapter": "interface Adapter",
    "android.widget.SpinnerAdapter": "interface SpinnerAdapter",
    "android.content.res.AssetFileDescriptor": "class AssetFileDescriptor",
}
_INTERFACES = {"android.content.res.AssetFileDescriptor": " implements java.io.Closeable"}


def write_stubs(folder: Path) -> list[Path]:
    """The classes as Java sources below a folder."""
    written = []
    for name, (parent, *members) in STUBS.items():
        package, _, own = name.rpartition(".")
        extends = (f" extends {parent}" if parent else "") + _INTERFACES.get(name, "")
        body = "".join(f"  {member}\n" for member in members if member)
        kind = _KINDS.get(name, f"class {own}")
        path = folder / name.replace(".", "/")
        path = path.with_suffix(".java")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"package {package};\n\npublic {kind}{extends} {{\n{body}}}\n")
        written.append(path)
    return written


def write_resources(path: Path, package: str, names: dict[str, list[str]]) -> Path:
    """The class R of an app: its resources' names by type."""
    types = "".join(
        f"  public static final class {kind} {{\n"
        + "".join(f"    public static final int {name} = 0;\n" for name in sorted(own))
        + "  }\n"
        for kind, own in sorted(names.items())
    )
    path.write_text(f"package {package};\n\npublic final class R {{\n{types}}}\n")
    return path

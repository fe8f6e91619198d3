package com.example.readtext

import android.graphics.Bitmap
import android.graphics.Canvas
import android.graphics.Color
import android.graphics.Paint
import android.graphics.Typeface

private const val TEXT_SIZE = 44f
private const val STEP = 88 // pixels from a line to the next
private const val MARGIN = 40
private const val INDENT = 60 // where every second line begins

/** Black on white, one line below the other; the one numbered [turned] stands on its head. */
fun drawPage(lines: List<String>, turned: Int): Bitmap {
    val paint = Paint(Paint.ANTI_ALIAS_FLAG).apply {
        color = Color.BLACK
        textSize = TEXT_SIZE
        typeface = Typeface.SANS_SERIF
    }
    val widest = lines.maxOf { paint.measureText(it) }.toInt()
    val width = widest + INDENT + 2 * MARGIN
    val page = Bitmap.createBitmap(width, STEP * lines.size + MARGIN, Bitmap.Config.ARGB_8888)
    val canvas = Canvas(page)
    canvas.drawColor(Color.WHITE)
    lines.forEachIndexed { number, line ->
        val left = (MARGIN + INDENT * (number % 2)).toFloat()
        val base = (STEP * (number + 1)).toFloat()
        canvas.save()
        if (number == turned) {
            canvas.rotate(180f, left + paint.measureText(line) / 2, base - TEXT_SIZE / 3)
        }
        canvas.drawText(line, left, base, paint)
        canvas.restore()
    }
    return page
}

/** A copy of the page with a frame round each line. */
fun withFrames(page: Bitmap, lines: List<TextLine>): Bitmap {
    val copy = page.copy(Bitmap.Config.ARGB_8888, true)
    val canvas = Canvas(copy)
    val paint = Paint().apply {
        style = Paint.Style.STROKE
        strokeWidth = 3f
    }
    for (line in lines) {
        paint.color = if (line.isTurned) Color.RED else Color.BLUE
        val box = line.box
        canvas.drawRect(
            box.left.toFloat(),
            box.top.toFloat(),
            box.right.toFloat(),
            box.bottom.toFloat(),
            paint,
        )
    }
    return copy
}

/** Its colours, row by row. */
fun pixelsOf(page: Bitmap): IntArray {
    val pixels = IntArray(page.width * page.height)
    page.getPixels(pixels, 0, page.width, 0, 0, page.width, page.height)
    return pixels
}

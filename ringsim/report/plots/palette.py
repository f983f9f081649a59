"""The colours: Okabe and Ito's, told apart by the colour-blind, and chosen to differ in lightness for print."""

BLUE = "#0072B2"
SKY = "#8ACBF2"  # Okabe and Ito's sky blue, lightened so that it differs from BLUE and ORANGE in grey
ORANGE = "#E69F00"
VERMILLION = "#D55E00"
BLACK = "#000000"
DARK_GREY = "#444444"
GREY = "#9A9A9A"
LIGHT_GREY = "#D9D9D9"
PALE_GREY = "#F2F2F2"
WHITE = "#FFFFFF"

import type { Messages } from './english.ts';
import { createFormats } from './formats.ts';

const NEW_CODE = 'Vuelva a empezar en su dispositivo para obtener un código nuevo.';

export const spanishMessages: Messages = {
  language: 'es',

  ...createFormats('es-ES', {
    ago: 'hace un momento',
    ahead: 'dentro de menos de un minuto',
  }),
  formatStep: (step, count) => `Paso ${step} de ${count}`,
  errorTitle: (title) => `Error: ${title}`,

  code: {
    title: 'Conectar un dispositivo',
    lead: 'Introduzca el código que muestra su dispositivo o aplicación.',
    leadPrefilled: 'Compruebe que su dispositivo o aplicación muestra este código.',
    label: 'Código',
    hint: 'Ocho letras, por ejemplo BCDF-GHJK. No importan las mayúsculas ni el guion.',
    wrong:
      'Este código no es válido o ha caducado. Compruébelo e inténtelo de nuevo, o vuelva a empezar en su dispositivo para obtener un código nuevo.',
    missing: 'Introduzca el código que muestra su dispositivo.',
    wrongLink:
      'El código del enlace no es válido y no se ha utilizado. Introduzca el código que muestra su dispositivo.',
  },

  signIn: {
    title: 'Iniciar sesión',
    lead: 'Inicie sesión para revisar la solicitud. Todavía no se ha aprobado nada.',
    leadGrants: 'Inicie sesión para ver las aplicaciones y los dispositivos que ha aprobado.',
    leadCode: 'Inicie sesión y, a continuación, introduzca su código. Todavía no se ha aprobado nada.',
    userName: 'Nombre de usuario',
    password: 'Contraseña',
    wrong: 'El nombre de usuario o la contraseña no son correctos.',
    or: 'o',
    certificate: 'Iniciar sesión con un certificado',
    certificateHint: 'Su navegador ha presentado un certificado.',
    certificateWrong:
      'No puede iniciar sesión con este certificado. Pruebe con otro método de inicio de sesión.',
    certificateMissing:
      'Su navegador no ha presentado ningún certificado. Pruebe con otro método de inicio de sesión.',
    with: (provider) => `Iniciar sesión con ${provider}`,
    none: 'No puede iniciar sesión con este navegador. Póngase en contacto con su administrador.',
    cancelled: 'El inicio de sesión no se ha completado. Inténtelo de nuevo.',
    notAccepted: 'No se ha podido iniciar sesión. Inténtelo de nuevo.',
    unknown: 'Su cuenta no tiene acceso a este servicio. Póngase en contacto con su administrador.',
  },

  redirectToProvider: {
    title: 'Redirigiendo…',
    formatLead: (provider) => `El inicio de sesión continúa en ${provider}.`,
  },
  signInComplete: { title: 'Sesión iniciada', lead: 'Se le está redirigiendo.' },

  review: {
    title: '¿Aprobar esta solicitud?',
    requestsAccess: ' quiere actuar en su nombre.',
    codeLabel: 'Compare el código',
    codeHint: 'Debe coincidir con el código de su dispositivo.',
    may: 'Esta aplicación podrá:',
    technical: 'Detalles técnicos',
    requestedAt: 'Solicitud',
    device: 'Nombre del dispositivo',
    deviceHint: 'Indicado por el dispositivo, sin verificar',
    from: 'Dirección IP',
    warning:
      'Apruebe la solicitud solo si acaba de iniciarla usted. Si alguien le ha enviado el código o un enlace, deniéguela.',
    approve: 'Aprobar',
    deny: 'Denegar',
    notYou: '¿No es usted? Cerrar sesión',
  },

  authorization: {
    redirecting: { title: 'Redirigiendo…', lead: 'Se le está redirigiendo para iniciar sesión.' },
    returnsTo: 'Vuelve a',
    address: 'Dirección de la aplicación',
    audience: 'Para la API',
    formatClaimedName: (name) => `se presenta como «${name}» y no está registrada aquí.`,
    unregistered: 'no está registrada aquí.',
    loopback: 'una aplicación en este equipo',
    formatApp: (scheme) => `la aplicación ${scheme} en este dispositivo`,
    formatRequestId: (id) => `Identificador de petición: ${id}`,
    warning:
      'Apruebe la solicitud solo si acaba de abrir usted esta página desde la aplicación. Si alguien le ha enviado un enlace, deniéguela.',
    notices: {
      invalid: {
        title: 'Solicitud no válida',
        lead: 'La solicitud de la aplicación no se puede procesar. No se ha aprobado nada. Si vuelve a ocurrir, póngase en contacto con el desarrollador de la aplicación.',
      },
      notRegistered: {
        title: 'Solicitud no válida',
        lead: 'Esta aplicación no está registrada en este servicio, o su solicitud no coincide con su registro. No se ha aprobado nada. Póngase en contacto con el desarrollador de la aplicación o con el administrador de este servicio.',
      },
      expired: {
        title: 'Solicitud caducada',
        lead: 'Esta solicitud es demasiado antigua o se inició en otro navegador. No se ha aprobado nada. Vuelva a la aplicación y empiece de nuevo.',
      },
      decided: {
        title: 'Solicitud ya respondida',
        lead: 'Esta solicitud ya se ha aprobado o denegado. Vuelva a la aplicación. Si sigue esperando, empiece de nuevo desde ella.',
      },
    },
  },

  notAllowed: {
    title: 'No puede aprobar esta solicitud',
    integration:
      'No tiene acceso a esta aplicación. Si lo necesita, póngase en contacto con su administrador.',
    scope: (excess) => `Esta aplicación solicita más permisos de los que usted puede conceder: ${excess}.`,
    disabled: 'Su cuenta está desactivada.',
  },

  approved: {
    title: 'Solicitud aprobada',
    lead: ' ya puede actuar en su nombre.',
    close: 'Puede cerrar esta página y volver a su dispositivo.',
  },
  denied: {
    title: 'Solicitud denegada',
    lead: ' no ha obtenido acceso.',
    close: 'Puede cerrar esta página.',
  },
  signOut: 'Cerrar sesión',
  signedInAs: 'Sesión iniciada como ',
  next: 'Continuar',
  expires: 'Caducidad',

  grants: {
    title: 'Aplicaciones y dispositivos aprobados',
    lead: 'Estas aplicaciones y dispositivos pueden actuar en su nombre. Revoque el acceso de los que ya no use o no reconozca.',
    none: 'Ninguna aplicación ni ningún dispositivo puede actuar en su nombre.',
    pending: (name) =>
      `Ha aprobado ${name}. El acceso aparecerá aquí en cuanto su dispositivo lo recoja, normalmente en unos segundos.`,
    may: 'Permisos:',
    by: {
      device: 'Aprobado en el navegador',
      code: 'Aprobado en el navegador',
      certificate: 'Concedido con su certificado',
      exchange: 'Concedido con un token de su proveedor de identidad',
      client: 'Concedido a la propia aplicación',
    },
    created: 'Concedido',
    lastRenewed: 'Última renovación',
    neverRenewed: 'Nunca',
    discontinued: 'Ya no está disponible',
    revokeLabel: 'Revocar…',
    formatRevokeLabel: (name) => `Revocar el acceso de ${name}`,
    more: 'Mostrar más',
  },
  revoke: {
    title: '¿Revocar el acceso?',
    lead: ' perderá este acceso de inmediato. Sus demás aprobaciones no se verán afectadas.',
    confirm: 'Revocar',
    cancel: 'Cancelar',
    done: (name) => `Se ha revocado el acceso de ${name}.`,
    missing: {
      title: 'Acceso no encontrado',
      lead: 'Es posible que haya caducado o que ya se haya revocado.',
    },
    back: 'Volver a la lista',
  },
  languageLabel: 'Idioma',
  enterAnotherCode: 'Introducir otro código',
  startAgain: 'Volver a empezar',
  tryAgain: 'Intentar de nuevo',

  alreadyApproved: {
    title: 'Solicitud ya aprobada',
    lead: `Esta solicitud ya se ha aprobado. ¿Su dispositivo sigue esperando? ${NEW_CODE}`,
  },
  alreadyDenied: {
    title: 'Solicitud ya denegada',
    lead: `Esta solicitud ya se ha denegado. ${NEW_CODE}`,
  },
  closed: {
    title: 'Solicitud cerrada',
    lead: `Esta solicitud se ha cerrado tras demasiados inicios de sesión fallidos. ${NEW_CODE}`,
  },
  codeInvalid: { title: 'Código no válido', lead: `Este código no es válido o ha caducado. ${NEW_CODE}` },
  codeExpired: {
    title: 'Código caducado',
    lead: `Los códigos solo son válidos durante unos minutos. No se ha aprobado nada. ${NEW_CODE}`,
  },
  withdrawn: {
    title: 'Aplicación no disponible',
    lead: 'Esta aplicación ya no está disponible. Póngase en contacto con su administrador.',
  },
  tooManyAttempts: {
    title: 'Demasiados intentos',
    lead: (wait) => `Inténtelo de nuevo ${wait}.`,
    leadSignIn: (wait) =>
      `En este momento se están introduciendo muchos códigos incorrectos. Puede que el suyo sea correcto: inicie sesión primero y, a continuación, introdúzcalo, o inténtelo de nuevo ${wait}.`,
  },
  expired: {
    title: 'Página caducada',
    lead: 'Por su seguridad, esta página solo es válida durante poco tiempo y requiere cookies. No se ha aprobado nada.',
  },
  rejected: {
    title: 'Solicitud no aceptada',
    lead: 'Puede que la página haya estado abierta demasiado tiempo o en varias pestañas. No se ha cambiado nada.',
  },
  badRequest: {
    title: 'Petición no válida',
    lead: 'No se ha podido leer la petición. No se ha cambiado nada.',
  },
  serviceUnavailable: {
    title: 'No disponible temporalmente',
    lead: 'Este servicio no está disponible temporalmente.',
  },
  directoryUnavailable: {
    title: 'Inicio de sesión no disponible temporalmente',
    lead: 'En este momento no se puede acceder al servicio de inicio de sesión.',
  },
  retryLater: {
    device: 'Su código seguirá siendo válido hasta que caduque. Inténtelo de nuevo en unos instantes.',
    authorization:
      'La solicitud de la aplicación seguirá siendo válida durante unos minutos. Inténtelo de nuevo en unos instantes.',
    other: 'Inténtelo de nuevo en unos instantes.',
  },
  overloaded: {
    title: 'Servicio saturado',
    lead: 'Muchas personas están iniciando sesión en este momento. Inténtelo de nuevo en unos instantes.',
  },
  internalError: {
    title: 'Algo ha ido mal',
    lead: 'Se ha producido un error por nuestra parte. Inténtelo de nuevo.',
    reference: (id) =>
      `Si vuelve a ocurrir, facilite a su administrador este identificador de petición: ${id}`,
  },
  notFound: { title: 'Página no encontrada', lead: 'Compruebe la dirección.' },
  root: {
    api: {
      title: 'Esto es una API',
      lead: 'Los programas usan esta dirección con un token de acceso. Sin él, aquí no hay nada que ver en un navegador.',
    },
    pages: {
      title: 'Dispositivos y aplicaciones',
      lead: 'En esta dirección puede conectar dispositivos y gestionar el acceso de las aplicaciones.',
    },
    links: '¿Busca una de estas páginas?',
  },
  methodNotAllowed: {
    title: 'Petición no válida',
    lead: 'Empiece de nuevo desde la primera página.',
  },

  permissions: {
    read: 'ver',
    view: 'ver',
    list: 'enumerar',
    search: 'buscar en',
    write: 'modificar',
    update: 'modificar',
    edit: 'modificar',
    create: 'crear',
    add: 'añadir',
    delete: 'eliminar',
    remove: 'quitar',
    upload: 'subir',
    download: 'descargar',
    send: 'enviar',
    share: 'compartir',
    run: 'ejecutar',
    execute: 'ejecutar',
    start: 'iniciar',
    stop: 'detener',
    approve: 'aprobar',
    manage: 'gestionar',
    admin: 'administrar',
  },
  separator: '; ',
  quote: (word) => `«${word}»`,
  describePermissions: (verbs, resource) => `${verbs} ${resource}`,
  describeOtherPermissions: (permissions, resource) => `usar ${resource} (${permissions})`,
  describeBareResource: (resource) => `usar ${resource}`,
};
